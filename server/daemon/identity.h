// Identity: who a client is, as the daemon has established it before it reads anything else of the
// client. A plain value; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace rcuda::server {

struct Identity {
  // The user of this machine as which the session runs if the daemon is root. None: the client has
  // proved who it is, but this machine has no such user.
  std::optional<uid_t> uid;
  gid_t gid = 0;              // with uid
  std::string user;           // for logs and lists; a number if the user has no name here
  std::vector<gid_t> groups;  // supplementary groups, with uid
  std::string method;  // "local socket", "ticket", "munge", "token", "certificate" or "insecure"
  std::string from;    // "pid 812", "10.0.0.7:51312"
};

}  // namespace rcuda::server
