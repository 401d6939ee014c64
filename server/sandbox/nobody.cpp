#include "server/sandbox/nobody.h"

#include <cerrno>

#include <grp.h>
#include <unistd.h>

namespace rcuda::server {

Status become_nobody() {
  if (::geteuid() != 0) return {};
  const bool done = ::setresgid(kNobody, kNobody, kNobody) == 0 && ::setgroups(0, nullptr) == 0 &&
                    ::setresuid(kNobody, kNobody, kNobody) == 0;
  if (done || errno == EINVAL) return {};  // the namespace has no such number
  return Status::from_errno(errno, "changing to the user nobody");
}

}  // namespace rcuda::server
