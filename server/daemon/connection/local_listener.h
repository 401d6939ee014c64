// The daemon's local sockets (wire::LocalAddress). Each server has an abstract socket. A server of
// root also has two sockets with paths under /run/rcuda: one for users of this machine, one for
// containers.
//
// Threads: the daemon's only thread. Blocking: none. Errors: the system's, with the address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/reach/connect.h"
#include "server/daemon/carried/carried_state.h"

namespace rcuda::server {

inline constexpr int kBacklog = 4096;  // the kernel limits it to net.core.somaxconn

// A listening socket. If it has a path, the destructor removes the path.
class LocalListener {
 public:
  LocalListener() = default;
  LocalListener(LocalListener&&) = default;
  LocalListener& operator=(LocalListener&&) = default;
  ~LocalListener() { remove(); }

  static Result<LocalListener> abstract(uint16_t port);
  // Listens in root's folder, and creates the folder if it is missing. `group`: besides root, only
  // its members may connect. Without a group every user may connect, and the daemon checks the
  // user.
  static Result<LocalListener> in_roots_folder(uint16_t port, std::optional<gid_t> group);
  // Every user may connect: groups of a container are not those of this machine.
  static Result<LocalListener> for_containers(uint16_t port);

  // Changes the users that may connect to a socket with a path.
  Status set_group(std::optional<gid_t> group);

  // For a successor (successor.h).
  CarriedSocket carry() const { return {socket_.get(), path_}; }
  static LocalListener restore(const CarriedSocket& carried);

  int get() const { return socket_.get(); }
  explicit operator bool() const { return static_cast<bool>(socket_); }
  // Removes the path. The caller closes the socket.
  UniqueFd release();

 private:
  static Result<LocalListener> at(const wire::LocalAddress& address, std::optional<gid_t> group);
  void remove();

  UniqueFd socket_;
  std::string path_;
};

// Reads bytes that have arrived on a local connection, but leaves them in the socket. Where the
// kernel does not keep descriptors out, taking the bytes would close the descriptors that the
// client has sent with them, and such a close may block (closer.h). `skip`: the number of bytes
// that were read before. Returns 0 if nothing more has arrived or the client has disconnected.
// Returns kDenied if the client has sent descriptors.
Result<size_t> peek(int connection, size_t skip, std::byte* data, size_t bytes);

}  // namespace rcuda::server
