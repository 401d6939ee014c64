// A /dev of the worker's own, which holds only the device nodes that it may use.
//
// A worker of root makes it in a mount namespace of its own before the driver starts, and cannot
// change it: it is mounted read-only, and the worker is soon another user. It holds what programs
// need (null, zero, random, shm), the adapters of RDMA, the nodes that all GPUs share, and those
// of the GPUs that are named. (Rejected: the devices of a control group. Version 1 has files for
// them, which a version 2 machine lacks; version 2 takes a BPF program, which only a process with
// CAP_BPF may attach and which a container's kernel often forbids.)
// Threads: one, before others start. Blocking: no. Errors: kSystem with the call that failed; /dev
// is then as before.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"

namespace rcuda::server {

// `gpus`: nodes such as nvidia3.
Status make_private_dev(const std::vector<std::string>& gpus);

}  // namespace rcuda::server
