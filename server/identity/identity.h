// Identity: the user of a client. The daemon establishes it before it handles a request of the
// client. Exceptions are Attach and PeerHello, which name a running session
// (common/messages/handshake.h). A plain value; any thread. Nothing blocks.
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
  // If the daemon is root, the session runs as this user of this machine. None: the client has a
  // token, and either this machine has no such user, or the token is not for sessions.
  std::optional<uid_t> uid;
  gid_t gid = 0;              // set together with uid
  std::string user;           // for logs and lists; a number if the user has no name here
  std::vector<gid_t> groups;  // supplementary groups; set together with uid
  // "local socket", "container socket", "ticket", "munge", "token", "certificate" or "insecure"
  std::string method;
  std::string from;  // "pid 812", "10.0.0.7:51312"
  // All groups of the user's account, if they have been looked up. For quotas only: a process may
  // have given up some of the groups. Its session then lacks their rights, but keeps their limits.
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

// Compares the users' numbers if one of them has a number, because the name of a user of this
// machine may not have been looked up yet. Otherwise compares the names.
bool same_user(const Identity& one, const Identity& other);

// The owner of a session: the user and the client host, as one text. Sessions of one owner may open
// each other's exports (server/names/exported_names.h). The owner of a client that has proved its
// identity is its user, with the host that the client names. The owner of any other client is its
// address, with the user and the host that the client names. The two kinds are never equal.
std::string owner_of(const Identity& identity, const wire::Hello& hello);

// The name of a user until it is looked up: "uid 1000".
std::string user_text(uid_t user);

// The process at the other end of a Unix socket, as it was when it connected: its effective user
// and group, and its own supplementary groups. So a session has the rights of the process: it lacks
// the rights that the process has given up, and the rights that the user's account has gained since
// the process started. No name service is needed. The name is user_text().
Result<Identity> identity_of_local(int socket);

}  // namespace rcuda::server
