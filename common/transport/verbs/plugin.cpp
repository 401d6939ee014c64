#include "common/transport/verbs/plugin.h"

#include "common/base/log.h"
#include "common/transport/verbs/verbs_link.h"

namespace {

constexpr rcuda::transport::VerbsPlugin kPlugin = {
    rcuda::transport::kVerbsPluginVersion,
    [](int threshold, rcuda::LogWriter writer) {
      rcuda::set_log_level(static_cast<rcuda::LogLevel>(threshold));
      rcuda::forward_log(writer);
    },
    rcuda::transport::verbs::usable,
    rcuda::transport::verbs::make_link,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const rcuda::transport::VerbsPlugin*
rcuda_verbs_plugin() {
  return &kPlugin;
}
