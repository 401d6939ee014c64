// The door between librcuda and its verbs plug-in. The plug-in is a part of the same build, loaded
// with dlopen when a verbs Link is first asked for, so that nothing links against rdma-core.
#pragma once

#include <memory>

#include "common/base/log_forward.h"
#include "common/transport/link.h"

namespace rcuda::transport {

inline constexpr char kVerbsPluginFile[] = "librcuda-verbs.so";
inline constexpr char kVerbsPluginEntry[] = "rcuda_verbs_plugin";
// Changes with everything that crosses the door: both sides must come from one build of the
// headers.
inline constexpr char kVerbsPluginVersion[] = "rcuda-verbs-6";

struct VerbsPlugin {
  const char* version;
  // Called before anything else: the plug-in has its own copy of the log's state.
  void (*set_log)(int threshold, LogWriter writer);
  Status (*usable)(int control_socket);
  Result<std::unique_ptr<Link>> (*make_link)(Bootstrap bootstrap, const LinkOptions& options);
};

using VerbsPluginEntry = const VerbsPlugin* (*)();

}  // namespace rcuda::transport
