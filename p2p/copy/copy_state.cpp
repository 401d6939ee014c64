#include "p2p/copy/copy_state.h"

namespace rcuda::p2p {
namespace {

using State = CopyState;
using Event = CopyEvent;

// The transitions of a copy without an error. For Done the caller checks what has been sent.
std::optional<State> after_work(State state, Event event) {
  switch (event) {
    case Event::kCommand:
      if (state == State::kAnnounced) return State::kWaiting;
      break;
    case Event::kStreamReached:
      if (state == State::kWaiting) return State::kReached;
      break;
    case Event::kPlan:
      if (state == State::kReached) return State::kPlanned;
      break;
    case Event::kWant:
      if (state == State::kPlanned) return State::kAsking;
      break;
    case Event::kPull:
      if (state == State::kPlanned) return State::kPulling;
      break;
    case Event::kStage:
      if (state == State::kPlanned || state == State::kAsking || state == State::kPulling) {
        return State::kSending;
      }
      break;
    case Event::kAllSent:
      if (state == State::kPlanned || state == State::kSending) return State::kSent;
      break;
    case Event::kDone:
      if (state == State::kSending || state == State::kSent || state == State::kPulling) {
        return State::kDone;
      }
      break;
    default:
      break;
  }
  return {};
}

// The transitions of a copy with an error.
std::optional<State> after_failure(State state, Event event) {
  const bool may_be_refused = state == State::kFailing || state == State::kAborting;
  switch (event) {
    case Event::kCommand:
    case Event::kFailure:
      return state;  // the first error counts
    case Event::kDone:
      if (may_be_refused) return State::kDone;
      break;
    case Event::kRefusal:
      if (state == State::kFailing) return State::kRefused;
      if (state == State::kAborting) return State::kClosing;
      break;
    case Event::kAbort:
      if (state == State::kFailing) return State::kAborting;
      if (state == State::kRefused) return State::kClosing;
      break;
    default:
      break;
  }
  return {};
}

}  // namespace

std::optional<CopyState> after(CopyState state, CopyEvent event) {
  if (state == State::kDone) {
    // The receiver has all bytes, so later events of this side change nothing.
    const bool idle = event == Event::kFailure || event == Event::kPeerLost;
    return idle ? std::optional(State::kDone) : std::nullopt;
  }
  if (event == Event::kPeerLost) return State::kLost;
  if (fails(state)) return after_failure(state, event);
  if (event == Event::kFailure) return State::kFailing;
  if (event == Event::kRefusal) return State::kRefused;
  return after_work(state, event);
}

const char* to_string(CopyState state) {
  switch (state) {
    case State::kAnnounced:
      return "announced";
    case State::kWaiting:
      return "waiting";
    case State::kReached:
      return "reached";
    case State::kPlanned:
      return "planned";
    case State::kAsking:
      return "asking";
    case State::kSending:
      return "sending";
    case State::kSent:
      return "sent";
    case State::kPulling:
      return "pulling";
    case State::kDone:
      return "done";
    case State::kFailing:
      return "failing";
    case State::kRefused:
      return "refused";
    case State::kAborting:
      return "aborting";
    case State::kClosing:
      return "closing";
    case State::kLost:
      return "lost";
  }
  return "unknown";
}

}  // namespace rcuda::p2p
