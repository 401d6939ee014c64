// The interface between librcuda, or a worker, and the verbs plug-in. The plug-in comes from the
// same build and is loaded with dlopen when verbs is first considered for a Link. So librcuda and
// worker run without rdma-core.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/log_forward.h"
#include "common/transport/link.h"

namespace rcuda::transport {

inline constexpr char kVerbsPluginFile[] = "librcuda-verbs.so";
inline constexpr char kVerbsPluginEntry[] = "rcuda_verbs_plugin";
// A hash of headers (CMakeLists.txt). A plug-in with another hash is refused.
inline constexpr char kVerbsPluginVersion[] = RCUDA_VERBS_PLUGIN_VERSION;

struct VerbsPlugin {
  const char* version;
  // Called before anything else: the plug-in has its own copy of the log's state.
  void (*set_log)(int threshold, LogWriter writer);
  Status (*usable)(int control_socket);
  Result<std::unique_ptr<Link>> (*make_link)(Bootstrap bootstrap, const LinkOptions& options);
};

using VerbsPluginEntry = const VerbsPlugin* (*)();

}  // namespace rcuda::transport
