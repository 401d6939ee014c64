// Loads the verbs plug-in when it is first asked for.
#include "common/transport/link.h"

namespace rcuda::transport {

Result<std::unique_ptr<Link>> make_verbs_link(Bootstrap, const LinkOptions&) {
  return Status{Code::kUnsupported, "this build has no verbs plug-in"};
}

}  // namespace rcuda::transport
