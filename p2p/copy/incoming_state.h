// IncomingState: the states of an incoming copy, and every transition between them (after()). The
// client's half is the command with which the client requests this side of the copy.
//
//   Announced --client's half--> Waiting --stream reached--> Ready
//   Ready --Target with a region--> Offered                (the destination is registered)
//   Ready --source mapped--> Pulling                       (mapped)
//   Ready, Offered --chunk--> Landing                      (also after a refused Want or Pull)
//   Landing, Pulling --Done--> Done
//
//   any of these --error of this side--> Failing --Done with the error--> Refusing
//   any of these, Failing --Abort--> Aborted --Done with the error--> Closing
//   Refusing --Abort--> Closing
//   any state but Done --peer lost--> Lost
//
// The messages of the sender may arrive before the client's half; they wait until the copy is
// Ready. A copy in Done is over. A copy in Closing is over when the client's half has come, and
// everything that was sent has arrived and has been reported as consumed. A copy in Lost is over
// when its own transfers have ended. Pure functions.
#pragma once

#include <cstdint>
#include <optional>

namespace rcuda::p2p {

enum class IncomingState : uint8_t {
  kAnnounced,  // the sender's half is known; waits for the client's half
  kWaiting,    // waits for the Link and for the destination's stream
  kReady,      // waits for the sender's choice: chunks, Want or Pull
  kOffered,    // registered: the sender has the destination's region; waits for its chunk
  kLanding,    // chunks are copied in
  kPulling,    // the source is mapped and is being copied
  kDone,       // everything is at its destination; Done has been sent
  kFailing,    // nothing more starts; waits for transfers in progress, then sends Done
  kRefusing,   // Done with an error has been sent; waits for Abort
  kAborted,    // Abort has arrived; waits for transfers in progress, then sends Done
  kClosing,    // Done sent, Abort received; waits for the chunks that were sent
  kLost,       // the peer is lost; waits for transfers in progress
};
inline constexpr auto kLastIncomingState = IncomingState::kLost;

enum class IncomingEvent : uint8_t {
  kCommand,        // the client's half has arrived
  kStreamReached,  // the stream has reached the copy, and the Link is open
  kOffer,          // the destination's region has been sent
  kPull,           // the copy of the mapped source has been queued
  kChunk,          // a chunk is being copied in, or is at its destination
  kDone,           // every byte is at its destination
  kFailure,        // an error of this side
  kRefusal,        // Done with an error has been sent
  kAbort,          // Abort has arrived
  kPeerLost,
};
inline constexpr auto kLastIncomingEvent = IncomingEvent::kPeerLost;

// Returns the next state, or nullopt if the event is impossible in `state`.
std::optional<IncomingState> after(IncomingState state, IncomingEvent event);

// Whether the copy ends with an error.
constexpr bool fails(IncomingState state) { return state >= IncomingState::kFailing; }
// Whether the stream has been reached and nothing has failed: bytes may be copied in.
constexpr bool may_land(IncomingState state) {
  return state >= IncomingState::kReady && state <= IncomingState::kPulling;
}
// Whether the sender has aborted the copy.
constexpr bool is_aborted(IncomingState state) {
  return state == IncomingState::kAborted || state == IncomingState::kClosing;
}
// Whether Done with the error must still be sent.
constexpr bool owes_done(IncomingState state) {
  return state == IncomingState::kFailing || state == IncomingState::kAborted;
}

const char* to_string(IncomingState state);

}  // namespace rcuda::p2p
