// Device memory. The worker allocates the memory and the client records it. So routing, pointer
// attributes and copy directions need no round trip, and the client itself refuses invalid
// pointers.

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <cuda.h>

#include "api/opcodes.h"
#include "api/shared.h"
#include "client/hostmem/host_memory.h"
#include "client/objects/allocation.h"
#include "client/objects/arena.h"
#include "client/process/process.h"
#include "client/process/worker_memory.h"
#include "client/route/capture.h"
#include "client/route/find_route.h"
#include "client/session/session.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

Registry& registry() { return Process::get().memory(); }

// Records an allocation. Only memory of cuMemAlloc belongs to the route's context. Other memory
// belongs to the device and may outlive that context, so it is recorded with the primary context.
CUresult record(const Route& route, CUdeviceptr address, size_t bytes, Placement placement,
                bool of_graph = false, CUmemoryPool pool = nullptr) {
  Allocation allocation;
  allocation.base = address;
  allocation.bytes = bytes;
  allocation.placement = placement;
  allocation.session = route.session;
  allocation.context =
      placement == Placement::kDevice
          ? route.context
          : Process::get().device(static_cast<CUdevice>(route.device))->primary->id;
  allocation.device = route.device;
  allocation.of_graph = of_graph;
  allocation.pool = pool;
  return record_memory(std::move(allocation));
}

bool is_device(Placement placement) {
  return placement == Placement::kDevice || placement == Placement::kDeviceAsync;
}

// Frees memory with `send`, which receives the route of the memory's owner. Removes the record
// first, because another thread may get the same address as soon as the worker has freed it.
// Records the memory again if the driver refused to free it. `is_own`: `send` returns the result of
// this call, not an error of an earlier command.
template <typename Send>
CUresult free_with(const Allocation& allocation, bool is_own, const Send& send) {
  // Fails if another thread has freed the memory meanwhile.
  if (!registry().remove(allocation.base)) return CUDA_ERROR_INVALID_VALUE;
  const Route owner = route_of(allocation);
  const CUresult result = send(&owner);
  const bool is_freed = !is_own || rcuda::api::is_gone(result);
  if (!is_freed) (void)registry().add(allocation);
  return result;
}

CUresult free_device(CUdeviceptr address) {
  RCUDA_RETURN_IF_CUDA_ERROR(check_not_destroyed());
  if (address == 0) return CUDA_SUCCESS;
  RCUDA_RETURN_IF_CUDA_ERROR(check_unsafe_call());
  const auto allocation = registry().find(address);
  if (!allocation || allocation->base != address) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->placement == Placement::kManaged) {
    const CUresult result = free_host(reinterpret_cast<void*>(address));
    if (result != CUDA_SUCCESS || !allocation->session) return result;
    const Route owner = route_of(*allocation);
    return forward_cuMemFree_v2(address, &owner);
  }
  if (!is_device(allocation->placement)) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->of_graph) return forward_cuMemFree_v2(address);
  return free_with(*allocation, true,
                   [=](const Route* owner) { return forward_cuMemFree_v2(address, owner); });
}

// Checks an allocation or free in a stream. In a capturing stream the call becomes a graph node. In
// any other stream the worker executes the call, which a capture of this or another thread may
// forbid.
CUresult check_beside_capture(CUstream stream) {
  return !any_capture() || may_capture(stream) ? CUDA_SUCCESS : check_unsafe_call();
}

// Records memory of the route's device. Memory allocated in a capturing stream belongs to a graph
// node. It stays recorded when it is freed, because the next launch allocates it again.
CUresult record_async(const Route& route, CUdeviceptr address, size_t bytes, CUstream stream,
                      CUmemoryPool pool = nullptr) {
  if (address == 0) return CUDA_SUCCESS;  // an allocation of 0 bytes
  return record(route, address, bytes, Placement::kDeviceAsync, may_capture(stream), pool);
}

// Logs once that the session has too few addresses for a reservation, because a local driver might
// have granted the reservation.
void tell_window(const Session& session, size_t bytes) {
  static std::atomic<bool> told{false};
  if (told.exchange(true)) return;
  uint64_t room = 0;
  for (const auto& window : session.welcome().windows) room += window.bytes;
  RCUDA_WARN(
      "%s cannot reserve %s of addresses: memory, pools and reservations of this program share "
      "%s of addresses on this server; free some of them, or name fewer servers in RCUDA_DEVICES",
      session.name().c_str(), bytes_text(bytes).c_str(), bytes_text(room).c_str());
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  RCUDA_ASSIGN_OR_RETURN(const Route route, find_current_route());
  RCUDA_RETURN_IF_CUDA_ERROR(check_unsafe_call());
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) {
    *address = 0;
    return CUDA_ERROR_INVALID_VALUE;
  }
  RCUDA_RETURN_IF_CUDA_ERROR(forward_cuMemAlloc_v2(address, bytes));
  return record(route, *address, bytes, Placement::kDevice);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                            unsigned element_bytes) {
  RCUDA_ASSIGN_OR_RETURN(const Route route, find_current_route());
  RCUDA_RETURN_IF_CUDA_ERROR(check_unsafe_call());
  if (!address || !pitch || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
  RCUDA_RETURN_IF_CUDA_ERROR(
      forward_cuMemAllocPitch_v2(address, pitch, width, height, element_bytes));
  size_t bytes = 0;
  if (*pitch < width || __builtin_mul_overflow(*pitch, height, &bytes)) bytes = SIZE_MAX;
  return record(route, *address, bytes, Placement::kDevice);
}

CUresult cuMemFree_v2(CUdeviceptr address) { return free_device(address); }

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  RCUDA_RETURN_IF_CUDA_ERROR(check_beside_capture(stream));
  RCUDA_RETURN_IF_CUDA_ERROR(find_work_route(stream).result());
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute route, find_stream_route(stream));
  RCUDA_RETURN_IF_CUDA_ERROR(forward_cuMemAllocAsync(address, bytes, stream));
  return record_async(route, *address, bytes, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  RCUDA_RETURN_IF_CUDA_ERROR(check_beside_capture(stream));
  RCUDA_RETURN_IF_CUDA_ERROR(forward_cuMemAllocFromPoolAsync(address, bytes, pool, stream));
  const auto& owner = *find<MemoryPool>(pool);
  return record_async(route_of(owner), *address, bytes, stream, pool);
}

// Like cuMemFree, accepts a null address and does nothing for it. Also accepts memory of
// cuMemAlloc, which cuSPARSE frees with this function.
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute route, find_stream_route(stream));
  if (address == 0) return CUDA_SUCCESS;
  RCUDA_RETURN_IF_CUDA_ERROR(check_beside_capture(stream));
  const auto allocation = registry().find(address);
  if (!allocation || allocation->base != address) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->placement == Placement::kManaged) return CUDA_ERROR_NOT_SUPPORTED;
  if (!is_device(allocation->placement)) return CUDA_ERROR_INVALID_VALUE;
  std::optional<InContext> scope;
  if (route.session != allocation->session) {
    // The stream is on another server. So the client waits for the stream, and the memory's worker
    // then frees the memory in its own default stream.
    if (may_capture(stream)) return CUDA_ERROR_INVALID_VALUE;
    RCUDA_RETURN_IF_CUDA_ERROR(cuStreamSynchronize(stream));
    scope.emplace(route_of(*allocation));
    stream = nullptr;
  }
  // Only the worker knows whether a graph's memory is currently allocated, so the client waits for
  // the worker's answer.
  const CaptureAnswers answers(allocation->of_graph);
  const auto send = [=](const Route* owner) {
    return forward_cuMemFreeAsync(address, stream, owner);
  };
  if (allocation->of_graph) return send(nullptr);
  constexpr auto kOpcode = static_cast<uint16_t>(rcuda::api::Opcode::cuMemFreeAsync);
  return free_with(*allocation, allocation->session->answers(kOpcode), send);
}

// The node owns its address from this call on, so the parameters of other nodes can contain the
// address. Each launch allocates the memory at this address; a node or the program frees the
// memory.
CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                size_t count, CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  // Of the parameters, only the address is an output.
  CUDA_MEM_ALLOC_NODE_PARAMS answered = *parameters;
  RCUDA_RETURN_IF_CUDA_ERROR(
      forward_cuGraphAddMemAllocNode(node, graph, dependencies, count, &answered));
  const CUdevice ordinal = parameters->poolProps.location.id;
  const Device* device = Process::get().device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  Allocation allocation;
  allocation.base = answered.dptr;
  allocation.bytes = parameters->bytesize;
  allocation.placement = Placement::kDeviceAsync;
  allocation.session = device->session;
  allocation.context = rcuda::wire::primary_context_id(device->ordinal);
  allocation.device = static_cast<uint32_t>(ordinal);
  allocation.of_graph = true;
  const CUresult known = record_memory(std::move(allocation));
  if (known == CUDA_SUCCESS) parameters->dptr = answered.dptr;
  return known;
}

// ---- virtual memory ----------------------------------------------------------------------------

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  // Ignore a hint outside of this worker's window: at an address in another worker's window, the
  // memory would seem to belong to that worker.
  rcuda::client::Session* const session = any_route().session;
  if (!rcuda::wire::contains(session->welcome().windows, hint)) hint = 0;
  const CUresult result = forward_cuMemAddressReserve(address, bytes, alignment, hint, flags);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) tell_window(*session, bytes);
  if (result != CUDA_SUCCESS) return result;
  if (!session->accepts(*address, bytes, "a reservation")) return kSessionLost;
  (void)registry().reserve(*address, bytes, session);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  // Remove the record first: another thread may get the addresses as soon as the worker has freed
  // them.
  RCUDA_ASSIGN_OR_RETURN(const Route owner, find_address_route(address));
  const auto reserved = registry().unreserve(address);
  const CUresult result = forward_cuMemAddressFree(address, bytes, &owner);
  if (reserved && !rcuda::api::is_gone(result)) {
    (void)registry().reserve(address, reserved->bytes, reserved->session);
  }
  return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  RCUDA_RETURN_IF_CUDA_ERROR(forward_cuMemMap(address, bytes, offset, handle, flags));
  // The memory belongs to the handle's device. The calling thread may have no current context.
  const auto* memory = find<AllocationHandle>(reinterpret_cast<const void*>(handle));
  if (!memory) return CUDA_ERROR_INVALID_VALUE;
  return record(route_of(*memory), address, bytes, Placement::kMapped);
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  // One unmap may cover several mappings. Remove their records before the worker unmaps the
  // addresses, because another thread may then map memory there.
  std::vector<Allocation> mappings;
  for (CUdeviceptr at = address; at < address + bytes;) {
    const auto mapping = registry().find(at);
    if (!mapping || mapping->base != at || mapping->placement != Placement::kMapped) break;
    if (!registry().remove(at)) break;  // another thread has unmapped it
    mappings.push_back(*mapping);
    at += mapping->bytes;
  }
  std::optional<Route> owner;
  if (!mappings.empty()) owner.emplace(route_of(mappings.front()));
  const CUresult result = forward_cuMemUnmap(address, bytes, owner ? &*owner : nullptr);
  if (!rcuda::api::is_gone(result)) {
    for (Allocation& mapping : mappings) (void)registry().add(std::move(mapping));
  }
  return result;
}

}  // extern "C"
