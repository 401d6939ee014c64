// Copies and event waits between servers. The client sends one half to each of the two workers, in
// order with its other commands to that worker. The workers match the halves by an id
// (p2p/engine/engine.h).
//
// Threads: any. Blocking: a synchronous copy and copy_between_servers_now() block until the copy
// has ended; every call blocks while the stream's queue or a command ring is full, and until parked
// sessions are awake (client/process/peers.h). A copy is ordered in the stream in which it is
// issued, whichever server owns that stream. A synchronous copy in the default stream is also
// ordered in the default streams of both devices.
#pragma once

#include <cstdint>

#include <cuda.h>

#include "client/objects/stream.h"
#include "client/route/find_route.h"

namespace rcuda::client {

// One side of a copy between servers: device memory of a worker.
struct PeerSide {
  Route owner;
  uint64_t address = 0;
  uint64_t pitch_bytes = 0;  // distance from row to row
  uint64_t slice_bytes = 0;  // distance from slice to slice
};

struct PeerExtent {
  uint64_t width_bytes = 0, height = 1, depth = 1;
};

struct CopyBetweenServers {
  PeerSide destination, source;
  PeerExtent extent;
};

CUresult copy_between_servers(const CopyBetweenServers& copy, CUstream stream, bool synchronous);
// Makes the copy outside of any stream and waits for it. For host functions, which already run at
// their place in a stream. If the copy fails, the program's next call that uses the destination's
// server reports the error.
void copy_between_servers_now(const CopyBetweenServers& copy);
// Implements cuStreamWaitEvent for a stream and an event of different servers. `stream`: the route
// of `handle`.
CUresult wait_across_servers(CUstream handle, const StreamRoute& stream, CUevent event_handle,
                             Event& event);

}  // namespace rcuda::client
