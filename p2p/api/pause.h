// Pause: the rules for held streams and for pauses, and the proof that no worker waits forever.
//
// Rules.
//  1. A copy that holds a stream holds it at the copy's place until all bytes have landed
//     (DeviceOps::enter, release). Only the engine releases the stream.
//  2. The client sends both halves of a copy under one lock. So all copies of a session have one
//     order, and each worker gets its halves in that order.
//  3. While a worker holds a stream, a command that may wait for the device waits until no stream
//     is held (server/executor/core/command_scheduler.h). So do the commands after it.
//  4. The engine makes calls that may wait for the device only in a pause. A kHolds pause begins
//     when no stream is held. Once it has been requested, a command that would hold a stream waits
//     until the pause is over. A kWork pause begins when, in addition, the program's work has
//     ended. Until it begins, it delays no command. Exception: a copy registers or maps its memory
//     without a pause, because no pause can begin while a copy holds a stream. Registering GPU
//     memory is not known to wait for work (communication libraries do it while kernels run). The
//     prober holds no stream, so it registers memory in a pause.
//  5. The executor thread grants a pause between two commands. The engine ends the pause at the end
//     of the round that uses it (Core::run_round calls resume()), and no round waits for a peer.
//  6. A copy takes slots in the peer's inbox when the peer's half has reached its place in its
//     stream (Ready), or when no earlier copy still has anything to send (Sender::first_in_line).
//
// No two workers wait for each other. Let X be the first copy, in the order of rule 2, that is not
// over. Its half on a worker may wait for
//  - earlier commands: by rule 3 they wait for streams that are held by copies before X;
//  - a pause: by rule 4 it also waits for streams that are held by copies before X;
//  - slots in an inbox: by rule 6 they belong to X, or to copies whose receiver can empty them.
// All copies before X are over, so none of these streams is held. So X proceeds at both ends and
// ends. Then the same holds for the next copy that is not over. A copy whose peer is lost waits
// only for its own transfers. (The stream itself may wait for the program; docs/p2p.md, "Held
// streams", says which programs hang.)
//
// A pause ends. A kHolds pause begins, because no new stream is held and every held stream is
// released, as shown above. The pause ends with its round, by rule 5.
#pragma once

#include <cstdint>

namespace rcuda::p2p {

// Which activity of the program is stopped.
enum class Pause : uint8_t {
  kNone,
  kHolds,  // no stream is held, and none becomes held
  kWork,   // in addition, no work runs and none is queued: a call that waits for the device
           // returns soon
};

}  // namespace rcuda::p2p
