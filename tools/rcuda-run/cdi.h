// Writes a specification of the Container Device Interface (CDI). Container tools (podman, Docker,
// CRI-O, containerd) read it from /etc/cdi to give a container remote GPUs. The specification
// mounts the client library, the user's token or certificate and, if the pool names this machine
// (`local`), the folder of sockets for containers. It sets the variables that rcuda-run sets. It
// contains the paths of secrets, and no secret except the one in RCUDA_LEASE.
//
// The devices are rcuda/gpu=0, =1, ... in the order of the pool, and rcuda/gpu=all. A container may
// have any number of them: each is a numbered variable of the pool (client/pool/device_list.h).
#pragma once

#include <filesystem>
#include <string>

#include "common/base/status.h"

namespace rcuda::tools {

// The file name of the NCCL library. rcuda-run preloads this library, too, if the folder with the
// client library's usual names contains it.
inline constexpr char kNcclName[] = "libnccl.so.2";

// `client`: the client library. `names`: the folder with the library's usual names, which is the
// library's own folder or a folder in it. Reads the pool and the settings from the environment,
// which no other thread may change. Blocks only for the file system; does not query servers.
// kNotFound if no GPUs are named; other errors name the variable.
Result<std::string> cdi_specification(const std::filesystem::path& client,
                                      const std::filesystem::path& names);

}  // namespace rcuda::tools
