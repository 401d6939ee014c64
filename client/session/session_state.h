// SessionState: the states of a Session (session.h), and every transition between them.
//
//   Connecting --ready--> Open --end--> Ended
//   Connecting, Open --loss--> Lost
//
// Lost and Ended are final. In both, calls that need the worker return kSessionLost.
#pragma once

#include <cstdint>

#include "common/base/state_word.h"

namespace rcuda::client {

enum class SessionState : uint8_t {
  kConnecting,  // Session::open() is running
  kOpen,        // the worker answers commands
  kLost,        // the Link broke, or this side closed it after an error; the reason is logged
  kEnded,       // the program ended the session
};
inline constexpr auto kLastSessionState = SessionState::kEnded;

enum class SessionEvent : uint8_t {
  kReady,  // Session::open() has succeeded
  kLoss,   // Session::lose(), in one or several threads
  kEnd,    // Session::end()
};
inline constexpr auto kLastSessionEvent = SessionEvent::kEnd;

inline constexpr Transition<SessionState, SessionEvent> kSessionTransitions[] = {
    {SessionState::kConnecting, SessionEvent::kReady, SessionState::kOpen},
    {SessionState::kConnecting, SessionEvent::kLoss, SessionState::kLost},
    {SessionState::kOpen, SessionEvent::kLoss, SessionState::kLost},
    {SessionState::kOpen, SessionEvent::kEnd, SessionState::kEnded},
    // Only the first loss counts; events of other threads do not change the state.
    {SessionState::kLost, SessionEvent::kReady, SessionState::kLost},
    {SessionState::kLost, SessionEvent::kLoss, SessionState::kLost},
    {SessionState::kLost, SessionEvent::kEnd, SessionState::kLost},
    // Calls of other threads fail after the end. This is not a loss.
    {SessionState::kEnded, SessionEvent::kLoss, SessionState::kEnded},
};

constexpr bool is_over(SessionState state) { return state >= SessionState::kLost; }

constexpr const char* to_string(SessionState state) {
  constexpr const char* kNames[] = {"connecting", "open", "lost", "ended"};
  return kNames[static_cast<int>(state)];
}

constexpr const char* to_string(SessionEvent event) {
  constexpr const char* kNames[] = {"ready", "loss", "end"};
  return kNames[static_cast<int>(event)];
}

}  // namespace rcuda::client
