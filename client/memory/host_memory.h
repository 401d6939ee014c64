// Page-locked client memory that the GPUs of every session can use at the address the application
// has.
//
// allocate() maps a memfd in a range that all workers keep free (common/wire/address_ranges.h); on
// shared memory the workers map the same pages, elsewhere they make page-locked memory of their own
// at that address and move the bytes when a copy needs them. Memory that the application already
// has and registers (cuMemHostRegister) is moved onto a memfd in place, at its address, so that it
// becomes the same thing; where a worker cannot have that address, it stays pageable: copies work,
// kernels cannot reach it, and the device pointer query says so.
//
// With unified addresses kernels reach all of it by its pointer, asked for as mapped or not. On
// media that cannot share pages it would be costly to keep all of it alike: memory that was not
// asked for as mapped is mirrored (mirror.h) from the first time on that its pointer is asked for
// as a device's, or is seen among a kernel's parameters or in a fill. Threads: any. Blocking: a
// round trip per session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <cuda.h>

#include "client/calls/marshal.h"
#include "client/channel/session.h"
#include "client/process/registry.h"

namespace rcuda::client {

CUresult allocate_host(void** address, size_t bytes, unsigned flags, bool managed);
CUresult free_host(void* address);
CUresult register_host(void* address, size_t bytes, unsigned flags);
CUresult unregister_host(void* address);
// What the two above do with memory of the host that is out of the registry.
void end_host_memory(const Allocation& memory);
// A kernel of `target` will have these parameters: page-locked memory that they point to is
// mirrored from now on, where it has to be. The calling thread needs no current context.
void mirror_reachable(const Target& target, std::span<const std::byte> parameters);
void mirror_reachable(const Target& target, const void* address);
// The same for other work in the stream that uses memory where it is. The worker gets what the
// application changed; in a stream that captures, each launch of the graph does that.
CUresult mirror_for(const Target& target, CUstream stream, uint64_t address);

// Memory of this library's own that one session's worker has at the same address and that no
// application sees.
struct InternalHostMemory {
  Session* session = nullptr;
  void* address = nullptr;
  size_t bytes = 0;  // whole pages
  transport::RegionId region{};
};
// `callback`: see wire::HostExposeBody.
CUresult allocate_internal(Session& session, wire::ObjectId context, size_t bytes,
                           uint64_t callback, InternalHostMemory* memory);
void free_internal(const InternalHostMemory& memory);

}  // namespace rcuda::client
