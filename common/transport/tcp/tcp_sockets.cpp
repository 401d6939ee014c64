#include "common/transport/tcp/tcp_sockets.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/start_thread.h"
#include "common/transport/tcp/tcp_messages.h"

namespace rcuda::transport {
namespace {

template <typename T>
void set_option(int socket, int level, int name, const T& value) {
  if (::setsockopt(socket, level, name, &value, sizeof value) != 0) {
    RCUDA_DEBUG("cannot set option %d (level %d) of a TCP socket: %s", name, level,
                std::strerror(errno));
  }
}

// The further sockets of a Link while they are made. Each takes a few round trips and, with a
// cipher, a millisecond on both sides, so they are made in parallel.
class Streams {
 public:
  Streams(const Bootstrap& bootstrap, size_t count, Deadline deadline)
      : bootstrap_(bootstrap), deadline_(deadline), count_(count), sockets_(count) {}

  Result<std::vector<Socket>> make_all() {
    std::vector<std::thread> threads(count_);
    for (size_t i = 1; i < threads.size(); ++i) {
      // If no thread can be started, this thread makes the socket, which only takes longer.
      if (!start_thread(&threads[i], [this, i] { make(i); }).ok()) make(i);
    }
    make(0);
    for (std::thread& thread : threads) {
      if (thread.joinable()) thread.join();
    }
    MutexLock lock(mutex_);
    if (!status_.ok()) return status_;
    return std::move(sockets_);
  }

 private:
  void make(size_t index) {
    const auto& make_socket = bootstrap_.server ? bootstrap_.accept_stream : bootstrap_.open_stream;
    Result<Socket> stream = make_socket(static_cast<int>(index));
    Status status = stream.status();
    StreamHello hello{kStreamMagic, index};
    if (status.ok()) {
      status = bootstrap_.server ? recv_all(*stream, writable_bytes_of(hello), deadline_)
                                 : send_all(*stream, bytes_of(hello), deadline_);
    }
    MutexLock lock(mutex_);
    if (!status.ok()) {
      if (status_.ok()) status_ = std::move(status);
    } else if (hello.magic != kStreamMagic || hello.index >= sockets_.size() ||
               sockets_[hello.index]) {
      status_ =
          Status(Code::kProtocol,
                 "the peer's bulk socket with index " + std::to_string(hello.index) +
                     " does not belong to this session: its index must be unused and below " +
                     std::to_string(sockets_.size()) + ", and its first message must be rcuda's");
    } else {
      sockets_[hello.index] = std::move(*stream);
    }
  }

  const Bootstrap& bootstrap_;
  const Deadline deadline_;
  const size_t count_;
  Mutex mutex_;
  std::vector<Socket> sockets_ RCUDA_GUARDED_BY(mutex_);
  Status status_ RCUDA_GUARDED_BY(mutex_);  // the first error
};

// Returns the value of TCP_USER_TIMEOUT in milliseconds. It is a quarter more than the limit of the
// Link, so the Link notices a silent peer first and loses all its sockets at once, with a reason.
// The kernel would end one socket after the other, with errors of its own.
int kernel_limit(std::chrono::milliseconds peer_timeout) {
  const int64_t limit = peer_timeout.count() + peer_timeout.count() / 4;
  return static_cast<int>(std::min<int64_t>(limit, INT_MAX));
}

}  // namespace

// Buffer sizes are left to the kernel: its automatic tuning (tcp_rmem, tcp_wmem) grows them further
// than an unprivileged process may request (rmem_max, wmem_max).
void tune(int socket, std::chrono::milliseconds peer_timeout) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  keep_alive(socket);
  if (peer_timeout.count() != 0) {
    set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kernel_limit(peer_timeout));
  }
}

void limit_unacknowledged(const Socket& socket, std::chrono::milliseconds limit) {
  (void)socket.set_option(IPPROTO_TCP, TCP_USER_TIMEOUT, kernel_limit(limit));
}

void set_receive_timeout(int socket, std::chrono::milliseconds timeout) {
  set_option(socket, SOL_SOCKET, SO_RCVTIMEO,
             timeval{timeout.count() / 1000, timeout.count() % 1000 * 1000});
}

Result<std::vector<Socket>> make_streams(const Bootstrap& bootstrap, size_t count,
                                         Deadline deadline) {
  return Streams(bootstrap, count, deadline).make_all();
}

}  // namespace rcuda::transport
