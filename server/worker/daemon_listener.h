// DaemonListener: receives what the daemon sends while a session begins and runs: further sockets
// of the client, sockets of the session's other workers, and the order to stop. It also notices the
// daemon's death.
//
// Threads: one of its own, from start() to the destructor. It calls `peer` and `stop`, and `stop`
// at most once. Blocking: wait_for_stream(), until the deadline. Errors: start() fails without a
// thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "server/worker/worker_messages.h"

namespace rcuda::server {

class DaemonListener {
 public:
  using Clock = std::chrono::steady_clock;

  // `socket` outlives the listener.
  DaemonListener(int socket, std::function<void(WorkerMessage)> peer,
                 std::function<void(const char* why)> stop);
  ~DaemonListener();
  DaemonListener(const DaemonListener&) = delete;
  DaemonListener& operator=(const DaemonListener&) = delete;

  Status start();

  // The client's socket of this index. kTimeout; kUnavailable where the server stops.
  Result<UniqueFd> wait_for_stream(int index, Clock::time_point deadline);

 private:
  void run();

  const int socket_;
  const std::function<void(WorkerMessage)> peer_;
  const std::function<void(const char*)> stop_;
  UniqueFd end_event_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint32_t, UniqueFd> streams_;  // guarded by mutex_, as what follows
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace rcuda::server
