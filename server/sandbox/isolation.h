// Isolation of a worker: before the first command of a client, the process becomes the session's
// user and gives up the rights that a session does not need.
//
// isolate_worker() does this for all threads of the process, those of the driver included:
//   user          a worker of root takes the uid, gid and groups of the grant, and with that loses
//                 all capabilities. It serves a session as root only if the client is root, and
//                 then changes nothing. Any other worker stays the daemon's user
//   system calls  it can start neither programs nor processes any more (call_filter.h), and
//                 no_new_privs is set (docs/isolation.md)
//   its memory    it leaves no core file. If its client is not the daemon's own user, the worker is
//                 not dumpable: only root's processes may trace it or read its memory. It holds
//                 resources that its user must not reach: the devices of other sessions, the memory
//                 with the session's limits. It is dumpable while a helper parks or wakes it
//                 (DumpableScope)
//   limits        RLIMIT_DATA and RLIMIT_NPROC, where the grant names them
// After an error the worker must end: some of its threads may already be the user's, and the others
// still root's.
// Threads: one, once; other threads may run. Blocking: up to 2 s, for threads that are just ending.
// Errors: kDenied if the grant names no user that root's worker may become; kSystem with the call
// that failed.
#pragma once

#include <sys/types.h>

#include "common/base/status.h"
#include "server/protocol/session_grant.h"
#include "server/sandbox/call_filter.h"

namespace rcuda::server {

Status isolate_worker(const SessionGrant& grant, CallFilter filter = CallFilter::kRefuse);

// While a DumpableScope exists, this process is dumpable. The driver's cuCheckpointProcess* reach a
// process by its /proc/PID/fd. Other processes of the same user may read this folder only if the
// process is dumpable.
class DumpableScope {
 public:
  DumpableScope();
  ~DumpableScope();
  DumpableScope(const DumpableScope&) = delete;

 private:
  const int before_;
};

// If this process is root's, it takes the user and the groups of `process`, so that it may reach
// that process without CAP_SYS_PTRACE. This process may have no other threads than the driver's.
Status become_user_of(pid_t process);

}  // namespace rcuda::server
