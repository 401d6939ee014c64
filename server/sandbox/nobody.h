// Nobody: the user without files, which has the same number on every Linux. For a process with one
// thread.
#pragma once

#include <sys/types.h>

#include "common/base/status.h"

namespace rcuda::server {

inline constexpr uid_t kNobody = 65534;

// Makes a process of root nobody, without groups and capabilities. A user namespace may have no such
// user, and then its root stays.
Status become_nobody();

}  // namespace rcuda::server
