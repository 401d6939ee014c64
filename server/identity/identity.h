// Identity: who a client is, as the daemon has established it before it reads anything else of the
// client. A plain value; any thread. Nothing blocks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/messages/handshake.h"
#include "common/messages/message_io.h"
#include "server/identity/roles.h"

namespace rcuda::server {

// Identity::method of a client of the local socket for containers.
inline constexpr const char* kContainer = "container socket";

struct Identity {
  // The user of this machine as which the session runs if the daemon is root. None: the client has
  // proved who it is, but this machine has no such user.
  std::optional<uid_t> uid;
  gid_t gid = 0;              // with uid
  std::string user;           // for logs and lists; a number if the user has no name here
  std::vector<gid_t> groups;  // supplementary groups, with uid
  // "local socket", "container socket", "ticket", "munge", "token", "certificate" or "insecure"
  std::string method;
  std::string from;  // "pid 812", "10.0.0.7:51312"
  // All groups of the user's account, if they have been looked up. For quotas only: a process may
  // have given groups up, and so the session does not have their rights, but their limits hold.
  std::vector<gid_t> account_groups;
  // The lease under which the session runs, and its job; empty: none.
  std::string lease{}, job{};
  bool lease_oversubscribes = false;  // Lease::oversubscribes
  // The roles of the token by which the client identified itself. None: the client may do all that
  // its user may. Without the role for sessions the client has no uid, and `user` is only a name.
  std::optional<Roles> roles{};

  bool may(Role role) const { return !roles || roles->has(role); }
};

// kDenied if the roles of the client's token do not allow a message of this type.
Status check_role(const Identity& who, wire::MessageType type);

// A user of this machine may not have been looked up yet, but has a number.
bool same_user(const Identity& one, const Identity& other);

// The owner of a session: the user and the client host, as one text. Sessions of one owner may open
// what each other has exported (server/names/exported_names.h).
// Of a client that has proved its identity, the user counts, together with the host that the client
// names. Of any other client only the address is known, so that and the names that the client gives
// count; none of these owners is an owner of a client that has proved its identity.
std::string owner_of(const Identity& identity, const wire::Hello& hello);

// The name of a user until it is looked up: "uid 1000".
std::string user_text(uid_t user);

// The process at the other end of a Unix socket, as it was when it connected: its effective user
// and group, and its own supplementary groups. So a session has the rights of the process, not
// those that the user's account has gained meanwhile or that the process has given up, and no name
// service is asked. The name is user_text().
Result<Identity> identity_of_local(int socket);

}  // namespace rcuda::server
