// Copy nodes of graphs whose two sides are device memory of different servers.
//
// No driver has both memories, so at the worker such a node is a host node: with each launch this
// process has the two workers copy, as for copies that a capture recorded (peer.h). What was
// given is kept with the node's function, under the number by which the worker's graph holds it, so
// that nodes of clones read back as well. Threads: any; nothing here waits for a copy.
#pragma once

#include <optional>

#include <cuda.h>

#include "client/channel/event_thread.h"
#include "client/memory/copy/peer.h"

namespace rcuda::client {

// Makes the copy in the stream (peer.h), or puts it into the graph that the stream is being
// captured into. A graph belongs to one server: its node waits while this process has the two
// workers copy.
CUresult issue_between_servers(const PeerCopy& copy, CUstream stream, bool synchronous);
// The copy between servers that a node's parameters say; empty when they say another one.
// CUDA_ERROR_NOT_SUPPORTED when one side is an array, whose bytes no other worker can address.
CUresult copy_between_servers_of(const CUDA_MEMCPY3D& given, std::optional<PeerCopy>* copy);
// What runs with each launch.
EventThread::GraphCallback node_function_of(const PeerCopy& copy, const CUDA_MEMCPY3D& given);
// The other way, for copies that a capture recorded.
CUDA_MEMCPY3D parameters_of(const PeerCopy& copy);
// Whether a node that copies as `before` says may copy as `after` says in an executable: between
// the same devices.
bool may_become(const PeerCopy& before, const PeerCopy& after);

}  // namespace rcuda::client
