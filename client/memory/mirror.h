// Mirrored memory: host-visible memory whose pages client and worker cannot share, kept alike by
// copying. That is a module's managed variables everywhere, and mapped or managed allocations on
// media that cannot map (TCP, verbs).
//
// Before work that may read or write it is posted, the blocks that the application changed are
// sent, in the stream's order; after a synchronising call returns, the bytes that the GPU changed
// are fetched. Copies in between are of the worker's bytes (server/executor/shadow_copy.h). Around
// each host function the worker sends all of it and takes back what the function changed
// (server/executor/mirrors.h). Bytes that both sides changed in between are the GPU's, as
// concurrent access is not allowed anyway. Costs nothing while nothing is mirrored; with large
// regions every synchronising call, and every host function, moves them whole. Threads: any. What
// waits for the worker holds no lock that a host function needs.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda.h>

#include "client/session/session.h"

namespace rcuda::client {

// Memory that already is mapped here. Its contents are sent with the next push.
void mirror(Session& session, wire::ObjectId context, void* address, size_t bytes);
// Makes the address range usable here first: of a managed variable, at the worker's address.
CUresult mirror_at(Session& session, wire::ObjectId context, CUdeviceptr address, size_t bytes);
void unmirror(const void* address);
// Whether kernels may have changed host memory since the last synchronising call.
bool any_mirrored();
// Whether any of [address, address + bytes) is kept alike with this worker.
bool is_mirrored(const Session& session, uint64_t address, size_t bytes);

// Sends what the application changed. An error: not all of it could be sent, and the next push
// sends the rest. Errors of earlier commands are left to whoever asks for them.
CUresult push_mirrors(Session& session, wire::ObjectId context, wire::ObjectId stream);
CUresult pull_mirrors(Session& session);

// Before and after a host function: the session's worker has sent its bytes, and waits for ours.
void mirrors_arrived(Session& session);
void mirrors_leave(Session& session);

}  // namespace rcuda::client
