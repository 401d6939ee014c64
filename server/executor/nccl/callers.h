// NcclCallers: threads for calls of NCCL that may wait for other ranks.
//
// Each call has a thread to itself, so no call delays another call. Threads are kept for later
// calls. Nothing waits for the threads: at the end of a session, a thread may still be in a call.
// Threads: start() from one thread. Blocking: never.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace rcuda::server {

class NcclCallers {
 public:
  explicit NcclCallers(size_t most);
  ~NcclCallers();  // idle threads end; others finish their work
  NcclCallers(const NcclCallers&) = delete;
  NcclCallers& operator=(const NcclCallers&) = delete;

  // Runs `work` on a thread. Returns false if no thread can be started, or if `most` calls are in
  // progress and `always` is false.
  bool start(bool always, std::function<void()> work);

 private:
  struct Shared;
  static void serve(const std::shared_ptr<Shared>& shared);

  const size_t most_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace rcuda::server
