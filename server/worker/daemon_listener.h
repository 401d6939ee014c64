// DaemonListener: receives the daemon's messages while a session begins and runs: further sockets
// of the client, sockets of other workers, lookups of exports, lost ranks of NCCL, steps of
// parking, and the request to stop. It also notices the daemon's death and, while the session
// begins, the end of the client's connection.
//
// Threads: one of its own, from start() to the destructor. It calls `caller` for sockets of other
// workers, lookups, lost ranks and steps of parking, and `stop` at most once. Blocking:
// wait_for_stream(), until the deadline. Errors: start() fails without a thread or an eventfd.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "server/protocol/worker_messages.h"

namespace rcuda::server {

class DaemonListener {
 public:
  using Clock = std::chrono::steady_clock;

  // `reports`: the worker's end of the pipe to the daemon. Both descriptors outlive the listener.
  // `caller` gets each PeerCall, ExportCall, RanksLost and ParkStep. `stop` gets the reason why the
  // session must end.
  DaemonListener(int socket, int reports, std::function<void(ToWorker)> caller,
                 std::function<void(std::string why)> stop);
  ~DaemonListener();
  DaemonListener(const DaemonListener&) = delete;
  DaemonListener& operator=(const DaemonListener&) = delete;

  Status start();

  // From now on watches whether this connection of the client ends. Replaces the connection of the
  // last call; an empty descriptor ends the watch.
  void watch(UniqueFd client);

  // Waits for the client's socket with this index. kTimeout at the deadline; kUnavailable if the
  // server stops, or the connection that is watched has ended.
  Result<FurtherSocket> wait_for_stream(int index, Clock::time_point deadline);

  // When a socket arrives that replaces a lost socket, calls `function` with its index. After this
  // call, wait_for_stream() can return the socket. `function` may be empty. on_replacement()
  // returns when the previous function cannot run any more.
  void on_replacement(std::function<void(int index)> function);

 private:
  void run();
  void wake();
  // Returns whether the listener goes on.
  bool take_message();

  const int socket_;
  const int reports_;
  const std::function<void(ToWorker)> caller_;
  const std::function<void(std::string)> stop_;
  UniqueFd event_;  // wakes the thread
  Mutex mutex_;
  CondVar changed_;
  std::map<uint32_t, FurtherSocket> streams_ RCUDA_GUARDED_BY(mutex_);
  std::function<void(int)> replacement_ RCUDA_GUARDED_BY(mutex_);
  bool stopped_ RCUDA_GUARDED_BY(mutex_) = false;
  UniqueFd client_ RCUDA_GUARDED_BY(mutex_);  // the connection that is watched
  bool client_left_ RCUDA_GUARDED_BY(mutex_) = false;
  uint64_t watches_ RCUDA_GUARDED_BY(mutex_) = 0;  // calls of watch()
  bool ends_ RCUDA_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace rcuda::server
