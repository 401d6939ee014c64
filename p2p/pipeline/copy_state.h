// CopyState: the states of an outgoing copy, and every transition between them (after()).
//
//   Announced --client's half--> Waiting --stream reached--> Reached --planned--> Planned
//   Planned --want--> Asking --Target--> Sending           (v1: the destination is registered)
//   Planned --chunks--> Sending --all sent--> Sent         (staged)
//   Planned --pull--> Pulling                              (ipc: the receiver maps the source)
//   Pulling --Target, refused--> Sending                   (it could not: the copy is staged)
//   Planned --nothing to copy--> Sent
//   Sending, Sent, Pulling --Done--> Done
//
//   any of these --error of this side--> Failing --Abort sent--> Aborting
//   any of these --Done with an error--> Refused
//   Failing --Done with an error--> Refused --Abort sent--> Closing
//   Aborting --Done with an error--> Closing
//   Failing, Aborting --Done--> Done                       (the receiver had all bytes already)
//   any state but Done --peer lost--> Lost
//
// A copy in Done or Lost is over when its own transfers have ended; one in Closing when the
// receiver has consumed all that it was sent as well. Pure functions.
#pragma once

#include <cstdint>
#include <optional>

namespace rcuda::p2p {

enum class CopyState : uint8_t {
  kAnnounced,  // the peer's half is known, the client's command is to come
  kWaiting,    // for the Link and for the source's stream
  kReached,    // for the probes of the Link to end, then for a plan
  kPlanned,    // for the destination's stream, if the copy is staged
  kAsking,     // v1: for the registration of the destination
  kSending,    // chunks are copied out, shipped, announced and consumed
  kSent,       // every chunk is with the peer, or there is none: for Done
  kPulling,    // the receiver maps the source and copies: for Done
  kDone,       // the receiver has everything; for this side's end of its transfers
  kFailing,    // nothing more starts; for what is under way, then Abort is sent
  kRefused,    // the same, and the receiver's Done with an error is here
  kAborting,   // Abort is sent: for Done
  kClosing,    // both are said: for Consumed of the chunks the receiver was sent
  kLost,       // the peer is gone; for what is under way
};
inline constexpr auto kLastCopyState = CopyState::kLost;

enum class CopyEvent : uint8_t {
  kCommand,        // the client's half
  kStreamReached,  // or the copy may overlap the one before it in its stream
  kPlan,
  kWant,     // the destination's registration is asked for
  kPull,     // the receiver is told to pull
  kStage,    // the copy goes in chunks: from its beginning, or as the direct way was refused
  kAllSent,  // every chunk is announced and at the end of its transfer
  kDone,     // the receiver's word: well
  kRefusal,  // the receiver's word: an error
  kFailure,  // an error of this side
  kAbort,    // Abort is sent
  kPeerLost,
};
inline constexpr auto kLastCopyEvent = CopyEvent::kPeerLost;

// The state that follows; none where the event cannot be in that state.
std::optional<CopyState> after(CopyState state, CopyEvent event);

// Whether the copy has not begun, and nothing is wrong with it: copies behind it wait for it.
constexpr bool before_begin(CopyState state) { return state <= CopyState::kPlanned; }
// Whether the copy ends with an error.
constexpr bool fails(CopyState state) { return state >= CopyState::kFailing; }
// Whether Abort is still to be sent.
constexpr bool owes_abort(CopyState state) {
  return state == CopyState::kFailing || state == CopyState::kRefused;
}

const char* to_string(CopyState state);

}  // namespace rcuda::p2p
