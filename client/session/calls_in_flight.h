// CallsInFlight: calls of one thread whose commands are sent before the first answer is awaited, so
// that all of them take one round trip.
//
// The free reply slots limit the calls in flight. An object belongs to one thread, which keeps the
// destinations of the answers valid until finish() returns. Blocking: finish() and the destructor
// block until the worker has answered. add() and add_copy() block while the command ring is full,
// and for the oldest answer if few reply slots are free. Errors: those of the session and the
// worker, for each call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>

#include <cuda.h>

#include "client/session/session.h"

namespace rcuda::client {

class CallsInFlight {
 public:
  // The most bytes that a call may request for the body of its reply.
  static constexpr size_t kMostReplyBytes = wire::ClientWindow::kLargeReplyBytes - 1024;
  // A function that receives the result and the answer of a call, on the thread of the
  // CallsInFlight. It must not use the CallsInFlight.
  using Take = std::function<void(CUresult, const Reply&)>;

  CallsInFlight() = default;
  ~CallsInFlight() { finish(); }
  CallsInFlight(const CallsInFlight&) = delete;
  CallsInFlight& operator=(const CallsInFlight&) = delete;

  void add(const Route& route, const wire::Command& command, size_t reply_bytes, Take take);
  // Copies device memory to `to` when the route's stream reaches this copy. The bytes travel in
  // replies. Sets *result only on the first error.
  void add_copy(const Route& route, std::byte* to, CUdeviceptr from, size_t bytes,
                CUresult* result);
  // Waits for all answers and passes each to the Take of its call.
  void finish();

 private:
  struct Pending {
    Session* session = nullptr;
    Timeline* timeline = nullptr;  // of the stream in which a copy waits; null for other calls
    Session::PendingCall call;
    Take take;
  };
  void take_oldest();

  std::deque<Pending> pending_;  // a deque, because a PendingCall must not move
};

}  // namespace rcuda::client
