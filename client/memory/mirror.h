// Mirrored memory: host-visible memory whose pages client and worker cannot share, kept alike by
// copying. That is a module's managed variables everywhere, and mapped or managed allocations on media
// that cannot map (TCP, verbs).
//
// Before work that may read it is posted, the blocks that the application changed are sent, in the
// stream's order; after a synchronising call returns, the bytes that the GPU changed are fetched.
// Bytes that both sides changed in between are the GPU's, as concurrent access is not allowed anyway.
// A host function sees the memory as of the last synchronising call. Costs nothing while nothing is
// mirrored; with large regions every synchronising call fetches them whole.
// Threads: any.
#pragma once

#include <cuda.h>

#include <cstddef>

#include "client/session/session.h"

namespace rcuda::client {

// Memory that already is mapped here. Its contents are sent with the next push.
void mirror(Session& session, wire::ObjectId context, void* address, size_t bytes);
// Makes the address range usable here first: of a managed variable, at the worker's address.
CUresult mirror_at(Session& session, wire::ObjectId context, CUdeviceptr address, size_t bytes);
void unmirror(const void* address);

CUresult push_mirrors(Session& session, wire::ObjectId context, wire::ObjectId stream);
CUresult pull_mirrors(Session& session);

}  // namespace rcuda::client
