// Closer: closes the daemon's local connections in another process, on kernels before 6.16.
//
// A local user can queue descriptors in its connection, and the close of such a descriptor can
// block for hours (common/base/passed_descriptors.h). Closing that connection would then block the
// daemon's only thread. So the daemon passes the connection to a helper process, closes its own
// descriptor, and then reports this to the helper. The daemon's close is therefore never the last.
// The helper then forks a child for each batch of connections of one user, and closes its own
// descriptors of them. After that the child exits, and its exit closes the last descriptors. The
// child calls no close(), because close() may linger (SO_LINGER) and the exit of a process does
// not. A child that does not end is killed after kPatience. One user has at most kMostChildren
// children; further connections of that user stay open in the helper until a child has ended.
//
// The helper is an orphan without privileges, and ends when the daemon does. If the helper has
// died, the daemon closes connections itself.
//
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

  ~Closer() { end(); }

  // Forks the helper. Call this before the process has threads and secrets.
  Status start();
  bool started() const { return static_cast<bool>(socket_); }

  // `user`: the user at the other end of the connection.
  void close(uid_t user, UniqueFd connection);
  // Passes waiting connections to the helper until the helper stops reading. Returns whether too
  // many connections still wait, so that the daemon must not accept more.
  bool is_full();
  // Whether messages to the helper are pending, because it did not read.
  bool has_more() const { return socket_ && (!waiting_.empty() || unsaid_ > 0); }
  // For a successor (successor.h), which continues with the same helper.
  int descriptor() const { return socket_.get(); }
  void restore(UniqueFd helper) { socket_ = std::move(helper); }
  // Ends the helper. Connections that the helper has not received stay open until this process
  // ends: unlike close(), the exit of a process does not linger.
  void end();

 private:
  // Returns false if the helper does not read for now, or after a temporary error.
  bool pass(uid_t user, UniqueFd* connection);
  bool say_closed();

  UniqueFd socket_;
  std::deque<std::pair<uid_t, UniqueFd>> waiting_;  // to be passed when the helper reads again
  size_t unsaid_ = 0;  // closed connections that are not reported to the helper yet
};

}  // namespace rcuda::server
