// Peers: introduces this process's workers to one another, so that copies and event waits between
// servers go from worker to worker and never through this process.
//
// Two workers that are to talk get the same random secret and a name for their connection; one of
// them connects to the other's server, at the address this process knows that server by. Done for
// all pairs when the process initialises (RCUDA_P2P=eager), or for a pair when first needed (lazy).
// Nothing is waited for: commands that need a connection wait for it in the workers.
// Threads: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <cuda.h>

namespace rcuda::client {

class Session;

class Peers {
 public:
  void introduce_all(const std::vector<std::unique_ptr<Session>>& sessions);
  // The name of the connection of two workers, which are introduced if they were not. kSessionLost
  // when either is gone.
  CUresult link(Session& one, Session& other, uint32_t* link);
  // The worker has dropped its connections: they are made anew when needed.
  void forget(const Session& session);

  // Held while the two halves of something are sent, so that all workers get pairs in one order: a
  // worker that waits for the other half of one waits for nothing that comes after it anywhere.
  std::mutex& order() { return order_; }

  // A number for a copy or a signal, used once.
  uint64_t next_id() { return next_id_.fetch_add(1, std::memory_order_relaxed); }

 private:
  using Pair = std::pair<const Session*, const Session*>;

  std::mutex order_;
  std::mutex mutex_;
  std::map<Pair, uint32_t> links_;  // guarded by mutex_
  uint32_t next_link_ = 1;          // guarded by mutex_
  std::atomic<uint64_t> next_id_{1};
};

}  // namespace rcuda::client
