// Graph nodes for copies between device memory of different servers.
//
// No driver can address both memories, so in the worker such a node is a host node. At each launch,
// its function in this process makes the two workers copy, and the node waits for them. Captured
// copies between servers work the same way (peer.h). The node's parameters are stored with the
// function. Nodes of cloned graphs have the id of the same function, so the parameters can be read
// back from these nodes too.
// Threads: any. Blocking: issue_between_servers(), like copy_between_servers() (peer.h).
#pragma once

#include <optional>

#include <cuda.h>

#include "client/copy/peer.h"
#include "client/session/worker_events.h"

namespace rcuda::client {

// Makes the copy in the stream (peer.h). If the stream captures, adds a node for the copy to the
// graph instead.
CUresult issue_between_servers(const CopyBetweenServers& copy, CUstream stream, bool synchronous);
// Gets the copy that a node's parameters describe; empty if the copy is not between servers.
// Returns CUDA_ERROR_NOT_SUPPORTED if one side of a copy between servers is an array, because the
// other worker cannot address an array's bytes.
CUresult copy_between_servers_of(const CUDA_MEMCPY3D& given,
                                 std::optional<CopyBetweenServers>* copy);
// Returns the function that runs at each launch of the node.
WorkerEvents::GraphCallback node_function_of(const CopyBetweenServers& copy,
                                             const CUDA_MEMCPY3D& given);
// Returns the parameters of a captured copy.
CUDA_MEMCPY3D parameters_of(const CopyBetweenServers& copy);
// Whether a node that makes the copy `before` in an executable may be changed to make `after`: only
// if the devices stay the same.
bool may_become(const CopyBetweenServers& before, const CopyBetweenServers& after);

}  // namespace rcuda::client
