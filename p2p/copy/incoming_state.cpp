#include "p2p/copy/incoming_state.h"

#include <array>
#include <cstddef>

#include "common/base/state_word.h"

namespace rcuda::p2p {
namespace {

using State = IncomingState;
using Event = IncomingEvent;

constexpr Transition<State, Event> kTransitions[] = {
    {State::kAnnounced, Event::kCommand, State::kWaiting},
    {State::kWaiting, Event::kStreamReached, State::kReady},
    {State::kReady, Event::kOffer, State::kOffered},
    {State::kReady, Event::kPull, State::kPulling},
    {State::kReady, Event::kChunk, State::kLanding},
    {State::kOffered, Event::kChunk, State::kLanding},
    {State::kLanding, Event::kDone, State::kDone},
    {State::kPulling, Event::kDone, State::kDone},
    // Copies with an error.
    {State::kFailing, Event::kRefusal, State::kRefusing},
    {State::kFailing, Event::kAbort, State::kAborted},
    {State::kAborted, Event::kRefusal, State::kClosing},
    {State::kRefusing, Event::kAbort, State::kClosing},
};

}  // namespace

std::optional<IncomingState> after(IncomingState state, IncomingEvent event) {
  if (state == State::kDone) {
    // Every byte is at its destination. Done may be lost with the peer: the copy is over anyway.
    return event == Event::kPeerLost ? std::optional(State::kDone) : std::nullopt;
  }
  if (event == Event::kPeerLost) return State::kLost;
  // The client's half may come late, and the first error counts.
  if (fails(state) && (event == Event::kCommand || event == Event::kFailure)) return state;
  if (!fails(state) && event == Event::kFailure) return State::kFailing;
  if (!fails(state) && event == Event::kAbort) return State::kAborted;
  return rcuda::after(kTransitions, state, event);
}

const char* to_string(IncomingState state) {
  constexpr std::array kNames{"announced", "waiting", "ready",    "offered", "landing", "pulling",
                              "done",      "failing", "refusing", "aborted", "closing", "lost"};
  static_assert(kNames.size() == static_cast<size_t>(kLastIncomingState) + 1);
  return kNames.at(static_cast<size_t>(state));
}

}  // namespace rcuda::p2p
