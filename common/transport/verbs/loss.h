// Loss: why a verbs Link ends, as one sentence that names the cause and the remedy.
//
// One failure appears in several places at once: as asynchronous events of the adapter, events of
// rdma_cm, failed or flushed completions, and the end of the control socket. Each thread that sees
// such a sign notes it. The first note starts a short time in which other signs may arrive; the
// strongest sign becomes the reason. Any thread may call. A call blocks for one query of a port at
// most.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "common/base/mutex.h"
#include "common/transport/verbs/handles.h"

namespace rcuda::transport::verbs {

class Loss {
 public:
  using Clock = std::chrono::steady_clock;

  // The signs of a loss. A later sign in this list explains more.
  enum class Sign {
    kNone,
    kFlushed,       // requests came back unexecuted, because of another failure
    kDisconnected,  // the peer's queue pairs are gone
    kRequest,       // a request failed
    kQueuePair,     // the adapter stopped one of this side's queue pairs or completion queues
    kDevice,        // the adapter itself is gone
  };
  // The function with which other components report signs to a Loss.
  using Note = std::function<void(Sign, const std::string& what)>;

  // The first note() calls `on_first`.
  explicit Loss(std::function<void()> on_first) : on_first_(std::move(on_first)) {}

  // Names the port to check when the reason is requested. Call it before the first note().
  void watch(ibv_context* context, uint8_t port);

  void note(Sign sign, const std::string& what);
  // The time to request the reason and end the Link. Before the first note(): time_point::max().
  Clock::time_point due() const;

  std::string reason() const;
  // Returns the reason to report when the control socket has ended because of `what`. If the cause
  // is on this side (the adapter, a queue pair or the port), the reason is that cause; otherwise it
  // is `what`.
  std::string reason_behind(const std::string& what) const;

 private:
  // The peer's farewell may arrive on the control socket this long after the loss of a queue pair.
  static constexpr auto kGrace = std::chrono::milliseconds(300);

  const std::function<void()> on_first_;
  ibv_context* context_ = nullptr;
  uint8_t port_ = 0;

  mutable Mutex mutex_;
  Sign sign_ RCUDA_GUARDED_BY(mutex_) = Sign::kNone;
  std::string what_ RCUDA_GUARDED_BY(mutex_);
  Clock::time_point due_ RCUDA_GUARDED_BY(mutex_) = Clock::time_point::max();
};

}  // namespace rcuda::transport::verbs
