#include "server/sandbox/nobody.h"

#include <cerrno>

#include <grp.h>
#include <unistd.h>

namespace rcuda::server {

Result<bool> become_nobody() {
  if (::geteuid() != 0) return false;
  const bool done = ::setresgid(kNobody, kNobody, kNobody) == 0 && ::setgroups(0, nullptr) == 0 &&
                    ::setresuid(kNobody, kNobody, kNobody) == 0;
  if (done || errno == EINVAL) return done;  // the namespace has no such number
  return Status::from_errno(errno, "becoming nobody");
}

}  // namespace rcuda::server
