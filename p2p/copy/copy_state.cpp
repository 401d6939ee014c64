#include "p2p/copy/copy_state.h"

#include <array>
#include <cstddef>

#include "common/base/state_word.h"

namespace rcuda::p2p {
namespace {

using State = CopyState;
using Event = CopyEvent;

constexpr Transition<State, Event> kTransitions[] = {
    {State::kAnnounced, Event::kCommand, State::kWaiting},
    {State::kWaiting, Event::kStreamReached, State::kReached},
    {State::kReached, Event::kPlan, State::kPlanned},
    {State::kPlanned, Event::kWant, State::kAsking},
    {State::kPlanned, Event::kPull, State::kPulling},
    {State::kPlanned, Event::kStage, State::kSending},
    {State::kAsking, Event::kStage, State::kSending},
    {State::kPulling, Event::kStage, State::kSending},
    {State::kPlanned, Event::kAllSent, State::kSent},
    {State::kSending, Event::kAllSent, State::kSent},
    // Possible only after everything has been sent, which the caller checks.
    {State::kSending, Event::kDone, State::kDone},
    {State::kSent, Event::kDone, State::kDone},
    {State::kPulling, Event::kDone, State::kDone},
    // Copies with an error.
    {State::kFailing, Event::kDone, State::kDone},
    {State::kAborting, Event::kDone, State::kDone},
    {State::kFailing, Event::kRefusal, State::kRefused},
    {State::kAborting, Event::kRefusal, State::kClosing},
    {State::kFailing, Event::kAbort, State::kAborting},
    {State::kRefused, Event::kAbort, State::kClosing},
};

}  // namespace

std::optional<CopyState> after(CopyState state, CopyEvent event) {
  if (state == State::kDone) {
    // The receiver has all bytes, so later events of this side change nothing.
    const bool idle = event == Event::kFailure || event == Event::kPeerLost;
    return idle ? std::optional(State::kDone) : std::nullopt;
  }
  if (event == Event::kPeerLost) return State::kLost;
  // After an error, neither a late command of the client nor a further error changes the state.
  if (fails(state) && (event == Event::kCommand || event == Event::kFailure)) return state;
  if (!fails(state) && event == Event::kFailure) return State::kFailing;
  if (!fails(state) && event == Event::kRefusal) return State::kRefused;
  return rcuda::after(kTransitions, state, event);
}

const char* to_string(CopyState state) {
  constexpr std::array kNames{"announced", "waiting",  "reached", "planned", "asking",
                              "sending",   "sent",     "pulling", "done",    "failing",
                              "refused",   "aborting", "closing", "lost"};
  static_assert(kNames.size() == static_cast<size_t>(kLastCopyState) + 1);
  return kNames.at(static_cast<size_t>(state));
}

}  // namespace rcuda::p2p
