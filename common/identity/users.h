// Names of this machine's users and groups. Any thread. Blocking: as the system's user database,
// which may be on the network (LDAP), so no poll loop may call.
#pragma once

#include <string>

#include <sys/types.h>

#include "common/base/status.h"

namespace rcuda::identity {

// The decimal uid if the user has no name, as in some containers.
std::string user_name(uid_t uid);

// Takes what user_name() returns. kNotFound if there is no such user; a number is a uid if no user
// has it as a name.
Result<uid_t> user_id(const std::string& name);

// Takes a name or a number, which need not be of a known group. kNotFound if no group has the name.
Result<gid_t> group_id(const std::string& name);

}  // namespace rcuda::identity
