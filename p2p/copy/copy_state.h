// CopyState: the states of an outgoing copy, and every transition between them (after()). The
// client's half is the command with which the client requests this side of the copy.
//
//   Announced --client's half--> Waiting --stream reached--> Reached --planned--> Planned
//   Planned --want--> Asking --Target--> Sending           (the destination is registered)
//   Planned --chunks--> Sending --all sent--> Sent         (staged)
//   Planned --pull--> Pulling                              (mapped: the receiver maps the source)
//   Pulling --Target, refused--> Sending                   (mapping failed: the copy is staged)
//   Planned --nothing to copy--> Sent
//   Sending, Sent, Pulling --Done--> Done
//
//   any of these --error of this side--> Failing --Abort sent--> Aborting
//   any of these --Done with an error--> Refused
//   Failing --Done with an error--> Refused --Abort sent--> Closing
//   Aborting --Done with an error--> Closing
//   Failing, Aborting --Done--> Done                       (the receiver already had all bytes)
//   any state but Done --peer lost--> Lost
//
// A copy in Done or Lost is over when its own transfers have ended. A copy in Closing is over when,
// in addition, the receiver has consumed all chunks that were sent to it. Pure functions.
#pragma once

#include <cstdint>
#include <optional>

namespace rcuda::p2p {

enum class CopyState : uint8_t {
  kAnnounced,  // the peer's half is known; waits for the client's half
  kWaiting,    // waits for the Link and for the source's stream
  kReached,    // waits for answers about the memory that the peer can map, then for a plan
  kPlanned,    // if staged: waits for Ready, or for earlier copies to send all their chunks
  kAsking,     // registered: waits for the registration of the destination
  kSending,    // chunks are copied out, transferred, announced and consumed
  kSent,       // every chunk has been sent, or the copy is empty; waits for Done
  kPulling,    // the receiver maps the source and copies; waits for Done
  kDone,       // the receiver has everything; waits for the end of this side's transfers
  kFailing,    // nothing more starts; waits for transfers in progress, then sends Abort
  kRefused,    // as kFailing, but the receiver's Done with an error has arrived
  kAborting,   // Abort has been sent; waits for Done
  kClosing,    // Abort sent, Done received; waits for Consumed of the chunks that were sent
  kLost,       // the peer is lost; waits for transfers in progress
};
inline constexpr auto kLastCopyState = CopyState::kLost;

enum class CopyEvent : uint8_t {
  kCommand,        // the client's half has arrived
  kStreamReached,  // the stream has reached the copy, or the copy may overlap with the previous one
  kPlan,
  kWant,     // the registration of the destination has been requested
  kPull,     // Pull has been sent
  kStage,    // the copy is sent in chunks: from its beginning, or after a refused direct copy
  kAllSent,  // every chunk has been announced and its transfer has ended, or the copy is empty
  kDone,     // Done without an error
  kRefusal,  // Done with an error
  kFailure,  // an error of this side
  kAbort,    // Abort has been sent
  kPeerLost,
};
inline constexpr auto kLastCopyEvent = CopyEvent::kPeerLost;

// Returns the next state, or nullopt if the event is impossible in `state`.
std::optional<CopyState> after(CopyState state, CopyEvent event);

// Whether the copy has not begun and has no error. Copies after it in its stream wait for it.
constexpr bool before_begin(CopyState state) { return state <= CopyState::kPlanned; }
// Whether the copy ends with an error.
constexpr bool fails(CopyState state) { return state >= CopyState::kFailing; }
// Whether Abort must still be sent.
constexpr bool owes_abort(CopyState state) {
  return state == CopyState::kFailing || state == CopyState::kRefused;
}

const char* to_string(CopyState state);

}  // namespace rcuda::p2p
