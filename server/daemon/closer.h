// Closer: closes the daemon's local connections in another process, on kernels before 6.16.
//
// A local user can queue descriptors in its connection whose close blocks for hours
// (common/base/passed_descriptors.h). The close of the connection would stop the daemon's only
// thread. So the daemon passes the connection to a helper process, closes its own, and then says
// so: its own close is never the last. The helper then forks a child for each batch of connections
// of one user, and the child exits with them: a process that ends does not linger. A child that
// does not end is killed after kPatience. One user has at most kMostChildren of them; further
// connections of that user stay open in the helper until one has ended.
//
// The helper is an orphan without privileges, and ends when the daemon does. If it has died,
// connections are closed by the daemon.
// Threads: one. Blocking: none. Errors: start() returns the system's.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <utility>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda::server {

class Closer {
 public:
  static constexpr auto kPatience = std::chrono::seconds(1);
  static constexpr size_t kMostChildren = 8;

  // Forks the helper. Before the process has threads and secrets.
  Status start();
  bool started() const { return static_cast<bool>(socket_); }

  // `user`: at the other end of the connection.
  void close(uid_t user, UniqueFd connection);
  // Whether so many connections wait for the helper that no more should be accepted. Passes on
  // what it takes now.
  bool is_full();
  // The helper ends.
  void end() { socket_.reset(); }

 private:
  // False: the helper does not read for now.
  bool pass(uid_t user, UniqueFd* connection);
  bool say_closed();

  UniqueFd socket_;
  std::deque<std::pair<uid_t, UniqueFd>> waiting_;  // the helper does not read for now
  size_t unsaid_ = 0;  // connections that are closed, which the helper does not know
};

}  // namespace rcuda::server
