// The specification by which container tools give a container remote GPUs: the Container Device
// Interface (CDI), which podman, Docker, CRI-O and containerd read from /etc/cdi. It mounts the
// client library, and the user's token or certificate, and sets the variables that rcuda-run sets.
// It holds paths of secrets and not the secrets, except for RCUDA_LEASE.
//
// The devices are rcuda/gpu=0, =1, ... in the order of the pool, and rcuda/gpu=all. A container may
// have any number of them: each is a numbered variable of the pool (client/pool/device_list.h).
#pragma once

#include <filesystem>
#include <string>

#include "common/base/status.h"

namespace rcuda::tools {

// `client` is the library, `names` the folder with its usual names, below or beside it. The pool
// and the settings are those of the environment, which no other thread may change. Blocks for the
// file system only; asks no server. kNotFound if no GPUs are named; other errors name the variable.
Result<std::string> cdi_specification(const std::filesystem::path& client,
                                      const std::filesystem::path& names);

}  // namespace rcuda::tools
