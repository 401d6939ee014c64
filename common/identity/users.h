// Names of this machine's users and groups. Any thread. Blocking: on the system's user database,
// which may be on the network (LDAP). Do not call from a poll loop.
#pragma once

#include <string>

#include <sys/types.h>

#include "common/base/status.h"

namespace rcuda::identity {

// Returns the user's name; the decimal uid if the user has no name, as in some containers.
std::string user_name(uid_t uid);
// Returns "ada (uid 1000)", for messages; "uid 1000" if the user has no name.
std::string user_and_number(uid_t uid);

// Returns the group's name; the decimal gid if the group has no name.
std::string group_name(gid_t gid);

// Accepts texts that user_name() returns. A number is a uid, unless a user has this number as its
// name. Returns kNotFound if there is no such user.
Result<uid_t> user_id(const std::string& name);

// Accepts a name, or any number. kNotFound if no group has the name.
Result<gid_t> group_id(const std::string& name);

}  // namespace rcuda::identity
