// Crossing: both ends of Reconnecting (common/transport/link.h) in one process. For each
// connection, the client's end makes a pair of sockets and passes one of them to the server's end.
//
// Threads: any. Blocking: the server's next(), until its deadline.
#pragma once

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <utility>

#include <sys/socket.h>

#include "common/base/mutex.h"
#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/transport/link.h"

namespace rcuda::test {

class Crossing {
 public:
  using Pair = std::pair<Socket, Socket>;  // the client's and the server's end

  explicit Crossing(std::chrono::milliseconds limit) : limit_(limit) {}

  // Called for each new connection, with its two ends. The connection uses the sockets that this
  // function returns.
  std::function<Result<Pair>(int index, Pair plain)> between = [](int, Pair pair) {
    return Result<Pair>(std::move(pair));
  };

  static Pair make_pair() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    return {Socket(UniqueFd(ends[0])), Socket(UniqueFd(ends[1]))};
  }

  transport::Reconnecting client() {
    transport::Reconnecting how;
    how.limit = limit_;
    how.connects = true;
    how.peer = "server";
    how.next = [this](int index, auto) -> Result<Socket> {
      RCUDA_ASSIGN_OR_RETURN(Pair pair, between(index, make_pair()));
      MutexLock lock(mutex_);
      ++made_;
      if (arrive_) arrive_(index);
      waiting_.insert_or_assign(index, std::move(pair.second));
      came_.notify_all();
      return std::move(pair.first);
    };
    return how;
  }
  transport::Reconnecting server() {
    transport::Reconnecting how;
    how.limit = limit_;
    how.peer = "client";
    how.next = [this](int index, auto deadline) -> Result<Socket> {
      MutexLock lock(mutex_);
      if (!came_.wait_until(lock, deadline,
                            [&]() RCUDA_REQUIRES(mutex_) { return waiting_.contains(index); })) {
        return Status(Code::kTimeout, "the other end has not connected again");
      }
      return std::move(waiting_.extract(index).mapped());
    };
    how.on_connection = [this](std::function<void(int)> arrive) {
      MutexLock lock(mutex_);
      arrive_ = std::move(arrive);
    };
    return how;
  }
  int made() {
    MutexLock lock(mutex_);
    return made_;
  }

 private:
  const std::chrono::milliseconds limit_;
  Mutex mutex_;
  CondVar came_;
  std::map<int, Socket> waiting_ RCUDA_GUARDED_BY(mutex_);
  std::function<void(int)> arrive_ RCUDA_GUARDED_BY(mutex_);
  int made_ RCUDA_GUARDED_BY(mutex_) = 0;
};

}  // namespace rcuda::test
