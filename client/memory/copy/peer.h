// Copies and event waits between servers. Each of the two workers gets its half at the place in its
// command stream where it belongs; they find one another by an id (p2p/engine.h).
//
// Threads: any. Blocking: synchronous copies until the copy is over, nothing else. A copy is
// ordered with the stream it is issued in, whichever server that belongs to; a synchronous one in
// the default stream also with the default streams of both devices.
#pragma once

#include <cstdint>

#include <cuda.h>

#include "client/calls/marshal.h"
#include "client/objects/stream.h"

namespace rcuda::client {

// One side: device memory of a worker.
struct PeerSide {
  Target owner;
  uint64_t address = 0;
  uint64_t pitch_bytes = 0;  // row to row
  uint64_t slice_bytes = 0;  // slice to slice
};

struct PeerExtent {
  uint64_t width_bytes = 0, height = 1, depth = 1;
};

struct PeerCopy {
  PeerSide destination, source;
  PeerExtent extent;
};

CUresult copy_between_servers(const PeerCopy& copy, CUstream stream, bool synchronous);
// The copy with a place in no stream, waited for: for host functions, which have their place. An
// error is reported by the program's next call that uses the destination's server.
void copy_between_servers_now(const PeerCopy& copy);
// cuStreamWaitEvent where stream and event are of different servers. `stream`: resolved.
CUresult wait_across_servers(CUstream handle, const Target& stream, wire::ObjectId id,
                             CUevent event_handle, const Event& event);

}  // namespace rcuda::client
