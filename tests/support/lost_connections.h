// LostConnections: both ends of Reconnecting (common/transport/link.h) over TCP in one process, and
// a thread that breaks their connections at random: it resets a connection, or ends both directions
// or one direction.
//
// The two ends share ownership of the object. Threads: any. Blocking: the server's next(), until
// its deadline; stop() and the destructor, until the thread has ended.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

#include "common/base/mutex.h"
#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/transport/link.h"
#include "tests/support/crossing.h"
#include "tests/support/tcp_sockets.h"

namespace rcuda::test {

class LostConnections : public std::enable_shared_from_this<LostConnections> {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  // Makes the Socket of each new connection, for instance an encrypted Socket.
  using Wrap = std::function<Result<Socket>(UniqueFd socket, bool server, Deadline deadline)>;
  explicit LostConnections(Wrap wrap) : wrap_(std::move(wrap)) {
    crossing_.between = [this](int, auto) -> Result<Crossing::Pair> {
      RCUDA_ASSIGN_OR_RETURN(auto pair, tcp_pair());
      lose_later(pair.first.get());
      return Crossing::Pair(std::move(pair.first), std::move(pair.second));
    };
  }
  ~LostConnections() { stop(); }

  // Lets the thread break this connection.
  void lose_later(int socket) {
    MutexLock lock(mutex_);
    open_.emplace_back(::dup(socket));
  }
  void start() {
    thread_ = std::thread([this] { run(); });
  }
  void stop() {
    stopped_ = true;
    if (thread_.joinable()) thread_.join();
  }

  transport::Reconnecting client() { return wrapped(crossing_.client(), false); }
  transport::Reconnecting server() {
    transport::Reconnecting how = wrapped(crossing_.server(), true);
    how.on_connection = {};
    return how;
  }

 private:
  // The thread may end one direction of a connection during a handshake. The handshake then fails
  // only at this deadline, so the time is short.
  static Deadline handshake_end() {
    return std::chrono::steady_clock::now() + std::chrono::seconds(1);
  }

  transport::Reconnecting wrapped(transport::Reconnecting how, bool server) {
    how.next = [this, self = shared_from_this(), next = std::move(how.next), server](
                   int index, Deadline deadline) -> Result<Socket> {
      RCUDA_ASSIGN_OR_RETURN(Socket socket, next(index, deadline));
      return wrap_(socket.release(), server,
                   server ? handshake_end() : std::min(deadline, handshake_end()));
    };
    return how;
  }

  void run() {
    std::mt19937 random(static_cast<uint32_t>(::getpid()));
    while (!stopped_) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
      MutexLock lock(mutex_);
      for (size_t i = 0; i < open_.size();) {
        if (random() % 4 == 0) {
          lose(open_[i].get(), random() % 3);
          open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
          ++i;
        }
      }
    }
  }

  static void lose(int socket, uint32_t way) {
    const sockaddr nowhere{};
    if (way == 0) {
      (void)::connect(socket, &nowhere, sizeof nowhere);  // a reset; bytes in flight are lost
    } else {
      ::shutdown(socket, way == 1 ? SHUT_RDWR : SHUT_WR);
    }
  }

  Crossing crossing_{std::chrono::seconds(20)};
  const Wrap wrap_;
  std::atomic<bool> stopped_{false};
  std::thread thread_;
  Mutex mutex_;
  std::vector<UniqueFd> open_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::test
