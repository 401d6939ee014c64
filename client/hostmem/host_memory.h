// Page-locked client memory. The GPUs of every session can use it at the application's address.
//
// allocate_host() maps a memfd in a range that all workers keep free
// (common/wire/address_ranges.h). Over shared memory, the workers map the same pages. Over other
// media, each worker has its own page-locked memory at that address, and the bytes are moved when a
// copy needs them. Memory that the application already has and registers (cuMemHostRegister) is
// moved onto a memfd in place for workers that share pages, and then works the same way. Memory
// that is shared with files, other processes or other drivers cannot move. Each worker then has its
// own memory, also over shared memory, and this process's CPU makes the copies. If a worker cannot
// map registered memory at its address, the memory stays pageable: copies work, kernels cannot
// reach it, and cuMemHostGetDevicePointer fails.
//
// With unified addresses, kernels reach all page-locked memory by its pointer, whether or not it
// was requested as mapped. Where pages are not shared, it would cost too much to keep all
// page-locked memory equal on both sides. So memory that was not requested as mapped is mirrored
// (mirror.h) only when the program first requests its device pointer, or passes its address to a
// kernel, a fill or a write of a value. If the address has appeared only inside of a larger
// parameter, not all launches send the memory's changes (MirrorUse).
// Threads: any. Blocking: a round trip per session; a call that ends memory also waits for the
// device.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda.h>

#include "client/mirror/mirror.h"
#include "client/process/registry.h"
#include "client/route/find_route.h"
#include "client/session/session.h"

namespace rcuda::client {

CUresult allocate_host(void** address, size_t bytes, unsigned flags, bool managed);
CUresult free_host(void* address);
CUresult register_host(void* address, size_t bytes, unsigned flags);
CUresult unregister_host(void* address);
// Ends the mirrors and exposures of host memory. Frees allocated memory; registered memory becomes
// ordinary memory of the application again. Call it after removing the memory from the registry.
void end_host_memory(const Allocation& memory);
// These parameters of a kernel may point to page-locked memory: begins to mirror it where
// necessary. `route`: the kernel's context. The calling thread needs no current context.
void mirror_reachable(const Route& route, const LaunchParameters& parameters);
void mirror_reachable(const Route& route, const void* address);
// Like mirror_reachable(), for memory that a fill or a memory operation in the stream accesses.
// Also sends the application's changes to the worker, except in a capturing stream: there, each
// launch of the graph sends them.
CUresult mirror_for(const Route& route, CUstream stream, uint64_t address);

// This library's own memory, which the worker of one session has at the same address. The
// application never sees it.
struct InternalHostMemory {
  Session* session = nullptr;
  void* address = nullptr;
  size_t bytes = 0;  // whole pages
  transport::RegionId region{};
};
// Allocates internal memory of at least `bytes`. `callback`: see wire::HostExposeBody.
CUresult allocate_internal(Session& session, wire::ObjectId context, size_t bytes,
                           uint64_t callback, InternalHostMemory* memory);
void free_internal(const InternalHostMemory& memory);

}  // namespace rcuda::client
