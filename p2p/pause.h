// Pause: the rules of held streams and of pauses, and why nobody waits for ever.
//
// Rules.
//  1. A copy that has its place in a stream holds the stream from there until the copy is over at
//     both ends (DeviceOps::enter, release). Only the engine lets it go.
//  2. The client sends both halves of a copy under one lock. So all copies of a session have one
//     order, and each worker gets its halves in that order.
//  3. While a worker holds a stream, a command that may wait for the device waits until no stream
//     is held (server/executor/peers/peer_waits.h). So do the commands behind it.
//  4. The engine makes calls that may wait for the device only in a pause. kHolds begins when no
//     stream is held. Once it is asked for, a command that would hold a stream waits until it is
//     over. kWork also waits until the program's work has ended, and keeps nothing waiting before
//     it begins.
//  5. The executor thread grants a pause between two commands. The engine ends it with the round
//     that uses it (Core::step calls resume()), and no round waits for a peer.
//  6. A copy takes places in the peer's inbox when the peer's half has reached its place (Ready),
//     or when no copy before it still has anything to send (Sender::first_in_line).
//
// No two workers wait for one another. Let X be the first copy, in the order of rule 2, that is not
// over. Its half on a worker may wait for
//  - commands in front of it: by rule 3 they wait for streams held by copies before X;
//  - a pause: by rule 4 it waits for streams held by copies before X, too;
//  - places in an inbox: by rule 6 they belong to X, or to copies whose receiver can take them.
// All copies before X are over, so none of these streams is held. X goes on at both ends and ends;
// then the same holds for the copy that is first next. A copy whose peer is lost ends at once. (The
// stream itself may wait for the program; docs/p2p.md, "Held streams", says which programs hang.)
//
// A pause ends. One of kHolds begins, since no new stream is held and each held one is let go, as
// above. It ends with its round, by rule 5.
#pragma once

#include <cstdint>

namespace rcuda::p2p {

// What of the program's stands still.
enum class Pause : uint8_t {
  kNone,
  kHolds,  // no stream is held, and none becomes so
  kWork,   // besides, nothing is running and nothing is queued: a call that waits for the device
           // returns soon
};

}  // namespace rcuda::p2p
