#include "server/daemon/connection/local_listener.h"

#include <cerrno>
#include <utility>
#include <vector>

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/passed_descriptors.h"

namespace rcuda::server {
namespace {

Result<UniqueFd> bound(const wire::LocalAddress& address) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return Status::from_errno(errno, "making the local socket " + address.text());
  if (::bind(socket.get(), address.get(), address.bytes()) != 0) {
    return Status::from_errno(errno, "listening on the local socket " + address.text());
  }
  return socket;
}

// Returns whether a server listens at the path. If none does, a killed server may have left the
// path.
bool is_in_use(const wire::LocalAddress& address) {
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return true;  // unknown, so the path stays
  return ::connect(socket.get(), address.get(), address.bytes()) == 0 || errno == EAGAIN;
}

Status check_folder(const char* folder) {
  if (::mkdir(folder, 0755) == 0) (void)::chmod(folder, 0755);  // regardless of the umask
  struct stat found {};
  if (::lstat(folder, &found) != 0)
    return Status::from_errno(errno, std::string("reading the properties of ") + folder);
  if (!S_ISDIR(found.st_mode) || found.st_uid != 0 || (found.st_mode & 022) != 0) {
    return {Code::kDenied,
            std::string(folder) + " must be a folder of root that only root can write: remove it"};
  }
  return {};
}

}  // namespace

Result<LocalListener> LocalListener::abstract(uint16_t port) {
  const wire::LocalAddress address(port);
  LocalListener made;
  RCUDA_ASSIGN_OR_RETURN(made.socket_, bound(address));
  (void)take_descriptors(made.get(), false);
  if (::listen(made.get(), kBacklog) != 0)
    return Status::from_errno(errno, "listening on the local socket " + address.text());
  return made;
}

Result<LocalListener> LocalListener::in_roots_folder(uint16_t port, std::optional<gid_t> group) {
  RCUDA_RETURN_IF_ERROR(check_folder(wire::LocalAddress::kRootsFolder));
  return at(wire::LocalAddress::in_roots_folder(port), group);
}

Result<LocalListener> LocalListener::for_containers(uint16_t port) {
  RCUDA_RETURN_IF_ERROR(check_folder(wire::LocalAddress::kContainersFolder));
  return at(wire::LocalAddress::for_containers(port), std::nullopt);
}

Result<LocalListener> LocalListener::at(const wire::LocalAddress& address,
                                        std::optional<gid_t> group) {
  const std::string path = address.text();
  if (is_in_use(address)) {
    return Status(Code::kUnavailable, path + " is in use by another server: choose another --port");
  }
  (void)::unlink(path.c_str());
  // No process can connect before the mode is right.
  const mode_t before = ::umask(0177);
  Result<UniqueFd> socket = bound(address);
  ::umask(before);
  if (!socket.ok()) return socket.status();
  LocalListener made;
  made.path_ = path;
  (void)take_descriptors(socket->get(), false);
  RCUDA_RETURN_IF_ERROR(made.set_group(group));
  if (::listen(socket->get(), kBacklog) != 0) {
    return Status::from_errno(errno, "listening on the local socket " + path);
  }
  made.socket_ = std::move(socket).value();
  return made;
}

Status LocalListener::set_group(std::optional<gid_t> group) {
  if (path_.empty() || ((!group || ::chown(path_.c_str(), 0, *group) == 0) &&
                        ::chmod(path_.c_str(), group ? 0660 : 0666) == 0)) {
    return {};
  }
  return Status::from_errno(errno, "changing who may connect to the local socket " + path_);
}

LocalListener LocalListener::restore(const CarriedSocket& carried) {
  LocalListener listener;
  listener.socket_.reset(carried.descriptor);
  listener.path_ = carried.path;
  return listener;
}

UniqueFd LocalListener::release() {
  remove();
  return std::move(socket_);
}

void LocalListener::remove() {
  // A moved-from object has no path.
  if (const std::string path = std::exchange(path_, {}); !path.empty()) ::unlink(path.c_str());
}

Result<size_t> peek(int connection, size_t skip, std::byte* data, size_t bytes) {
  std::vector<std::byte> known(skip);
  iovec pieces[] = {{known.data(), skip}, {data, bytes}};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = 2;
  const ssize_t got = ::recvmsg(connection, &message, MSG_PEEK | MSG_DONTWAIT);
  // The call has no room for descriptors, so this flag is their only sign.
  if (got >= 0 && (message.msg_flags & MSG_CTRUNC) != 0) {
    return Status(Code::kDenied,
                  "the client sent file descriptors, and the server accepts none before a session: "
                  "connect with librcuda of the same build");
  }
  return got > static_cast<ssize_t>(skip) ? static_cast<size_t>(got) - skip : 0;
}

}  // namespace rcuda::server
