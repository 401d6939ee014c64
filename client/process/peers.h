// Peers: introduces this process's workers to one another, so that copies and event waits between
// servers go directly from worker to worker, never through this process.
//
// Both workers of a pair get the same random secret and the same name for their connection. One
// worker connects to the other's server, at the address that this process uses for that server.
// With RCUDA_P2P=eager, or auto and few servers, all pairs are introduced when the process
// initialises; otherwise each pair at its first use. No function waits for a connection: commands
// that need the connection wait in the workers. Threads: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <cuda.h>

#include "common/base/mutex.h"

namespace rcuda::client {

class Session;

class Peers {
 public:
  // Sets how many workers this process has. Called before the first introduction.
  void set_workers(size_t count) { workers_ = static_cast<uint32_t>(count); }
  void introduce_all(const std::vector<std::unique_ptr<Session>>& sessions);
  // Wakes both sessions if their workers are not connected: the worker of a parked session cannot
  // connect, and its peer gives up after some time. (Servers do not park sessions whose workers are
  // connected.) Blocks until both sessions are awake. Called before link(), without pairs_mutex().
  CUresult wake(Session& one, Session& other);
  // Gets the name of the connection between two workers, and introduces them if necessary. Returns
  // kSessionLost if either worker is lost.
  CUresult link(Session& one, Session& other, uint32_t* link);
  // Called when a session's worker drops its connections. link() then introduces the workers again.
  void forget(const Session& session);

  // Held while both halves of a copy or signal are sent, so that all workers get the pairs in the
  // same order. Otherwise two workers could wait for each other's halves.
  Mutex& pairs_mutex() RCUDA_RETURN_CAPABILITY(pairs_mutex_) { return pairs_mutex_; }

  // Returns a new id for a copy or a signal; each id is used once.
  uint64_t next_id() { return next_id_.fetch_add(1, std::memory_order_relaxed); }

 private:
  using Pair = std::pair<const Session*, const Session*>;

  uint32_t workers_ = 0;
  Mutex pairs_mutex_;
  Mutex mutex_;
  std::map<Pair, uint32_t> links_ RCUDA_GUARDED_BY(mutex_);
  uint32_t next_link_ RCUDA_GUARDED_BY(mutex_) = 1;
  std::atomic<uint64_t> next_id_{1};
};

}  // namespace rcuda::client
