// The states of a ResumableSocket (resumable_socket.h), and every transition between them.
#pragma once

#include <cstdint>

#include "common/base/state_word.h"

namespace rcuda::transport {

enum class ResumableState : uint8_t {
  kConnected,  // bytes flow in both directions
  kLost,       // no connection; the stream waits for the next connection
  kResending,  // receives as usual; sends again the bytes that the peer has not received
  kEnded,      // nothing is sent or received any more
};

enum class ResumableEvent : uint8_t {
  kLoss,        // the connection is lost
  kConnection,  // over the next connection, both sides have agreed where to go on
  kResent,      // all bytes that the peer lacked have been sent again
  kEnd,         // shutdown(), the peer has ended, or no connection replaces the lost connection
};

inline constexpr Transition<ResumableState, ResumableEvent> kResumableTransitions[] = {
    {ResumableState::kConnected, ResumableEvent::kLoss, ResumableState::kLost},
    {ResumableState::kConnected, ResumableEvent::kEnd, ResumableState::kEnded},
    {ResumableState::kLost, ResumableEvent::kConnection, ResumableState::kResending},
    {ResumableState::kLost, ResumableEvent::kEnd, ResumableState::kEnded},
    {ResumableState::kResending, ResumableEvent::kResent, ResumableState::kConnected},
    {ResumableState::kResending, ResumableEvent::kLoss, ResumableState::kLost},
    {ResumableState::kResending, ResumableEvent::kEnd, ResumableState::kEnded},
    // Several threads may notice the same loss or end.
    {ResumableState::kLost, ResumableEvent::kLoss, ResumableState::kLost},
    {ResumableState::kEnded, ResumableEvent::kLoss, ResumableState::kEnded},
    {ResumableState::kEnded, ResumableEvent::kEnd, ResumableState::kEnded},
};

constexpr const char* to_string(ResumableState state) {
  constexpr const char* kNames[] = {"connected", "lost", "resending", "ended"};
  return kNames[static_cast<int>(state)];
}

constexpr const char* to_string(ResumableEvent event) {
  constexpr const char* kNames[] = {"loss", "connection", "resent", "end"};
  return kNames[static_cast<int>(event)];
}

}  // namespace rcuda::transport
