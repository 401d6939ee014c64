#include "common/transport/verbs/plugin.h"

#include <utility>

#include "common/base/log.h"
#include "common/base/taken_descriptors.h"
#include "common/transport/verbs/verbs_link.h"

namespace {

constexpr rcuda::transport::VerbsPlugin kPlugin = {
    rcuda::transport::kVerbsPluginVersion,
    [](int threshold, rcuda::LogWriter writer) {
      rcuda::set_log_level(static_cast<rcuda::LogLevel>(threshold));
      rcuda::forward_log(writer);
    },
    [](int control_socket) {
      const rcuda::StandardDescriptorsTaken taken;
      return rcuda::transport::verbs::usable(control_socket);
    },
    [](rcuda::transport::Bootstrap bootstrap, const rcuda::transport::LinkOptions& options) {
      const rcuda::StandardDescriptorsTaken taken;
      return rcuda::transport::verbs::make_link(std::move(bootstrap), options);
    },
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const rcuda::transport::VerbsPlugin*
rcuda_verbs_plugin() {
  return &kPlugin;
}
