// CallFilter: restricts the system calls of a worker or a door (seccomp), for all its threads.
//
// In a worker, it refuses (EPERM) calls that CUDA does not need, but that an attacker in control of
// the worker would use: calls that leave a process behind (fork, vfork, clone of a process), start
// a program, look into other processes, enter other namespaces, change mounts, administer the
// machine (modules, swap, reboot), or use large parts of the kernel that had many holes (io_uring,
// bpf, keys, perf events). Calls that are newer than Linux 6.10 return ENOSYS, and so does clone3,
// whose flags a filter cannot read: libraries then use older calls.
//
// A door may only use the descriptors that it has or receives: read, write, send without
// descriptors, receive, poll, shutdown and close. MSG_OOB is refused. A door may map memory, but no
// executable memory. So the process opens and connects nothing, starts neither processes nor
// threads, sends no descriptor, and changes no option of a socket.
//
// Threads: one call restricts all threads of the process. Blocking: none. Errors: the system's; a
// kernel without seccomp is not an error for a worker, and a line in the log says so.
#pragma once

#include "common/base/status.h"

namespace rcuda::server {

enum class CallFilter {
  // For a worker.
  kRefuse,
  // For a worker, to find out which calls its driver needs: the kernel logs the calls that kRefuse
  // would refuse, and refuses only those that start a program.
  kLog,
  kStreamsOnly,  // for a door
};

// Also sets no_new_privs.
Status filter_calls(CallFilter filter);

}  // namespace rcuda::server
