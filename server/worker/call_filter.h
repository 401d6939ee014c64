// CallFilter: what a session's worker may ask of the kernel (seccomp), for all its threads.
//
// Refused (EPERM) is what a CUDA worker does not need and a session that has taken it over would
// use: to leave a process behind (fork, vfork, clone of a process), to start a program, to look into
// other processes, to enter other namespaces, and large parts of the kernel that had many holes
// (io_uring, bpf, keys, perf events). Calls that are newer than the list, and clone3, whose flags a
// filter cannot read, are ENOSYS: libraries then use older calls.
//
// Threads: the caller changes all of the process. Blocking: none. Errors: the system's; a kernel
// without seccomp is not an error, and a line in the log says so.
#pragma once

#include "common/base/status.h"

namespace rcuda::server {

enum class CallFilter {
  kRefuse,
  kLog,  // to find out what a driver needs: the kernel logs the calls. Programs stay refused
};

// Sets no_new_privs too.
Status filter_calls(CallFilter filter);

}  // namespace rcuda::server
