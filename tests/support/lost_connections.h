// LostConnections: both ends of Reconnecting over TCP in one process, and a thread that breaks
// their connections at random: by a reset, by an end, by an end of one direction.
//
// The two ends share ownership of the object. Threads: any. Blocking: the server's next(), until
// its deadline; stop() and the destructor, for the thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/mutex.h"
#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/transport/link.h"

namespace rcuda::test {

class LostConnections : public std::enable_shared_from_this<LostConnections> {
 public:
  // Makes a Socket of each further connection, for instance an encrypted one.
  using Deadline = std::chrono::steady_clock::time_point;
  using Wrap = std::function<Result<Socket>(UniqueFd socket, bool server, Deadline deadline)>;
  explicit LostConnections(Wrap wrap) : wrap_(std::move(wrap)) {}
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

  transport::Reconnecting client() {
    transport::Reconnecting how = common();
    how.connects = true;
    how.next = [this, self = shared_from_this()](int index, Deadline deadline) -> Result<Socket> {
      RCUDA_ASSIGN_OR_RETURN(auto pair, connected());
      lose_later(pair.first.get());
      {
        MutexLock lock(mutex_);
        waiting_.insert_or_assign(index, std::move(pair.second));
        came_.notify_all();
      }
      return wrap_(std::move(pair.first), false, std::min(deadline, handshake_end()));
    };
    return how;
  }
  transport::Reconnecting server() {
    transport::Reconnecting how = common();
    how.next = [this, self = shared_from_this()](int index, Deadline deadline) -> Result<Socket> {
      MutexLock lock(mutex_);
      if (!came_.wait_until(lock, deadline,
                            [&]() RCUDA_REQUIRES(mutex_) { return waiting_.contains(index); })) {
        return Status(Code::kTimeout, "no connection has come");
      }
      UniqueFd socket = std::move(waiting_.extract(index).mapped());
      lock.unlock();
      return wrap_(std::move(socket), true, handshake_end());
    };
    return how;
  }

 private:
  // Short: the thread may end one direction of a connection in the middle of a handshake.
  static Deadline handshake_end() {
    return std::chrono::steady_clock::now() + std::chrono::seconds(1);
  }

  static transport::Reconnecting common() {
    transport::Reconnecting how;
    how.limit = std::chrono::seconds(20);
    how.peer = "the test's other end";
    return how;
  }

  // Two ends of a TCP connection.
  static Result<std::pair<UniqueFd, UniqueFd>> connected() {
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const at = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::bind(listener.get(), at, size) != 0 || ::listen(listener.get(), 1) != 0 ||
        ::getsockname(listener.get(), at, &size) != 0 || ::connect(client.get(), at, size) != 0) {
      return Status::from_errno(errno, "connecting for the test");
    }
    return std::pair(std::move(client),
                     UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)));
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
      (void)::connect(socket, &nowhere, sizeof nowhere);  // a reset; what is under way is lost
    } else {
      ::shutdown(socket, way == 1 ? SHUT_RDWR : SHUT_WR);
    }
  }

  const Wrap wrap_;
  std::atomic<bool> stopped_{false};
  std::thread thread_;
  Mutex mutex_;
  CondVar came_;
  std::map<int, UniqueFd> waiting_ RCUDA_GUARDED_BY(mutex_);
  std::vector<UniqueFd> open_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::test
