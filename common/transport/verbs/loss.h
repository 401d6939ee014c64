// Loss: why a verbs Link comes to its end, as one sentence that names the culprit and the mend.
//
// One failure shows in several places at once: in asynchronous events of the adapter, in events of
// rdma_cm, in completions with an error, in requests flushed behind them, on the control socket.
// Whoever sees something notes it; the first note starts a short time in which the others may come,
// and the strongest of them is the reason. Any thread may call; nothing blocks for long.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>

#include "common/transport/verbs/handles.h"

namespace rcuda::transport::verbs {

class Loss {
 public:
  using Clock = std::chrono::steady_clock;

  // What was seen; the later in this list, the more it explains.
  enum class Sign {
    kNone,
    kFlushed,       // requests came back undone, because of something else
    kDisconnected,  // the peer's queue pairs are gone
    kRequest,       // a request failed
    kQueuePair,     // the adapter stopped one of this side's queue pairs or completion queues
    kDevice,        // the adapter itself is gone
  };
  // How producers of signs see a Loss.
  using Note = std::function<void(Sign, const std::string& what)>;

  // `on_first` is called by the first note().
  explicit Loss(std::function<void()> on_first) : on_first_(std::move(on_first)) {}

  // The port to look at when the reason is asked for. Before the first note().
  void watch(ibv_context* context, uint8_t port);

  void note(Sign sign, const std::string& what);
  // When the reason should be asked for and the Link ended: never before the first note().
  Clock::time_point due() const;

  std::string reason() const;
  // The reason when the control socket told of the end: `what` it said, unless the end has its
  // cause on this side.
  std::string reason_behind(const std::string& what) const;

 private:
  // How long a lost queue pair may precede the peer's farewell on the control socket.
  static constexpr auto kGrace = std::chrono::milliseconds(300);

  const std::function<void()> on_first_;
  ibv_context* context_ = nullptr;
  uint8_t port_ = 0;

  mutable std::mutex mutex_;  // guards the rest
  Sign sign_ = Sign::kNone;
  std::string what_;
  Clock::time_point due_ = Clock::time_point::max();
};

}  // namespace rcuda::transport::verbs
