// Nobody: the user without files, which has the same number on every Linux. For a process with one
// thread.
#pragma once

#include <sys/types.h>

#include "common/base/status.h"

namespace rcuda::server {

inline constexpr uid_t kNobody = 65534;

// Changes a process of root to the user nobody, without groups and capabilities. In a user
// namespace without this user, the process remains root of the namespace.
Status become_nobody();

}  // namespace rcuda::server
