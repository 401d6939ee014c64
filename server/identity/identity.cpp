#include "server/identity/identity.h"

#include <cerrno>

#include <sys/socket.h>

#include "common/base/socket_io.h"

namespace rcuda::server {
namespace {

// Includes the length of `text`, so that different sequences of parts never make the same text.
std::string part(const char* what, const std::string& text) {
  return std::string(what) + " " + std::to_string(text.size()) + " " + text + ", ";
}

}  // namespace

Status check_role(const Identity& who, wire::MessageType type) {
  using wire::MessageType;
  const bool is_question = type == MessageType::kStatusQuery || type == MessageType::kGpuQuery;
  const bool is_session = type == MessageType::kHello;
  if (is_question || who.may(Role::kSession) || (!is_session && who.may(Role::kOperator))) {
    return {};
  }
  const std::string role = is_session ? "session" : "operator";
  return Status(Code::kDenied, "the role of the client's token is " + who.roles->text() + ", but " +
                                   (is_session ? "sessions" : "changes of the server and leases") +
                                   " need the role " + role + ": \"rcuda-token create --role " +
                                   role + "\" on the server's machine makes such a token");
}

bool same_user(const Identity& one, const Identity& other) {
  // A client with the method "insecure" has only claimed its user. So it is not the same user as a
  // client that has proved its user.
  if ((one.method == "insecure") != (other.method == "insecure")) return false;
  return one.uid || other.uid ? one.uid == other.uid : one.user == other.user;
}

std::string owner_of(const Identity& identity, const wire::Hello& hello) {
  if (identity.method == "insecure") {
    const std::string address = identity.from.substr(0, identity.from.rfind(':'));
    return part("address", address) + part("claimed", std::to_string(hello.uid)) +
           part("host", hello.host);
  }
  return (identity.uid ? part("uid", std::to_string(*identity.uid)) : part("user", identity.user)) +
         part("host", hello.host);
}

std::string user_text(uid_t user) { return "uid " + std::to_string(user); }

Result<Identity> identity_of_local(int socket) {
  RCUDA_ASSIGN_OR_RETURN(const ucred credentials, peer_credentials(socket));
  Identity identity;
  identity.uid = credentials.uid;
  identity.gid = credentials.gid;
  identity.user = user_text(credentials.uid);
  identity.method = "local socket";
  identity.from = "pid " + std::to_string(credentials.pid);
  // Without a buffer, the call fails with ERANGE and returns the size of the list of groups.
  socklen_t bytes = 0;
  int error = ::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, nullptr, &bytes) == 0 ? 0 : errno;
  if (error == ERANGE) {
    identity.groups.resize(bytes / sizeof(gid_t));
    error = ::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, identity.groups.data(), &bytes) == 0
                ? 0
                : errno;
  }
  // Some kernels of sandboxes lack this option. The session then has only the process's primary
  // group.
  if (error == ENOPROTOOPT) return identity;
  if (error != 0)
    return Status::from_errno(error, "reading the groups of a local connection (SO_PEERGROUPS)");
  return identity;
}

}  // namespace rcuda::server
