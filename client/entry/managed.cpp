// Managed memory: allocation, hints, and queries of its location.
//
// There are two kinds. If the process has one server, over another medium than shared memory, an
// allocation of more than 64 KB is usually managed memory of the worker's driver. It has a mirror
// at the same address in this process (client/mirror/mirror.h; is_in_worker() decides). Any other
// allocation is page-locked client memory, which kernels access at the same address
// (client/hostmem/host_memory.h): over shared memory they access the same pages, over other media a
// mirror.
//
// The client checks hints as a driver does, and queries return the given hints. Hints move no
// pages: the worker's driver moves pages when kernels access them.

#include <algorithm>
#include <cstdint>
#include <vector>

#include <cuda.h>

#include "client/hostmem/host_memory.h"
#include "client/mirror/mirror.h"
#include "client/process/advice_book.h"
#include "client/process/process.h"
#include "client/process/worker_memory.h"
#include "client/route/capture.h"
#include "client/route/find_route.h"
#include "common/base/mutex.h"
#include "common/cuda/known_values.h"
#include "common/cuda/managed_advice.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

// Only managed memory of more than this size can lie in the worker (is_in_worker()). Its size is
// rounded up to a multiple of kLargeBytes. Smaller memory is page-locked memory of the client.
constexpr size_t kLargeBytes = 64 << 10;

rcuda::Mutex advice_mutex;
AdviceBook& advices() RCUDA_REQUIRES(advice_mutex) {
  static auto* instance = new AdviceBook(Process::get().memory());
  return *instance;
}

CUresult find_managed(CUdeviceptr address, size_t bytes, Allocation* allocation) {
  RCUDA_RETURN_IF_CUDA_ERROR(check_current());
  const auto found = Process::get().memory().find(address);
  if (bytes == 0 || !found || !is_managed(*found) ||
      bytes > found->bytes - (address - found->base)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *allocation = *found;
  return CUDA_SUCCESS;
}

CUresult check_location(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return Process::get().device(location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// Whether large managed memory is in the worker. With several sessions it is in the client, because
// kernels of all sessions can reach it there. Over a medium that shares pages it is in the client,
// because both sides then see each other's writes without any transfer.
bool is_in_worker() {
  const auto& sessions = Process::get().sessions();
  return sessions.size() == 1 && !sessions.front()->traits().shares_pages;
}

// Allocates managed memory of the worker's driver, and mirrors it. Returns CUDA_ERROR_NOT_SUPPORTED
// if the memory can only be in the client.
CUresult allocate_in_worker(const Route& route, CUdeviceptr* pointer, size_t bytes,
                            unsigned flags) {
  RCUDA_RETURN_IF_CUDA_ERROR(check_unsafe_call());
  if (bytes > SIZE_MAX - kLargeBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation allocation;
  allocation.bytes = bytes;
  allocation.placement = Placement::kManaged;
  allocation.session = route.session;
  allocation.context = route.context;
  allocation.device = route.device;
  allocation.flags = flags;
  CUdeviceptr address = 0;
  // Round the size up: a driver packs small allocations into shared pages, but the mirror needs
  // whole pages. In the worker, the memory is always attached globally, because the worker's digest
  // kernel reads it too (server/executor/mirrors/block_digests.h).
  RCUDA_RETURN_IF_CUDA_ERROR(forward_cuMemAllocManaged(
      &address, (bytes + kLargeBytes - 1) / kLargeBytes * kLargeBytes, CU_MEM_ATTACH_GLOBAL));
  allocation.base = address;
  RCUDA_RETURN_IF_CUDA_ERROR(record_memory(std::move(allocation)));
  const Device& device = *Process::get().device(static_cast<CUdevice>(route.device));
  CUresult result =
      mirror_managed(*route.session, route.context, address, bytes, device.info.total_bytes);
  if (result != CUDA_SUCCESS) {
    (void)Process::get().memory().remove(address);
    (void)forward_cuMemFree_v2(address, &route);
    return result;
  }
  *pointer = address;
  return CUDA_SUCCESS;
}

// Checks the whole batch, then records the locations as hints. Without locations, the call is a
// discard and does nothing more: discarded memory may have any contents.
CUresult prefetch_batch(const CUdeviceptr* addresses, const size_t* bytes, size_t count,
                        const CUmemLocation* locations, const size_t* location_starts,
                        size_t location_count, unsigned long long flags, CUstream stream) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!addresses || !bytes || count == 0 || flags != 0 || !stream || stream == CU_STREAM_LEGACY) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<Allocation> ranges(count);
  for (size_t i = 0; i < count; ++i) {
    RCUDA_RETURN_IF_CUDA_ERROR(find_managed(addresses[i], bytes[i], &ranges[i]));
  }
  std::vector<const CUmemLocation*> places(count);
  for (size_t k = 0; k < location_count; ++k) {
    const size_t first = location_starts[k];
    const size_t end = k + 1 < location_count ? location_starts[k + 1] : count;
    if ((k == 0 && first != 0) || end <= first || end > count) return CUDA_ERROR_INVALID_VALUE;
    RCUDA_RETURN_IF_CUDA_ERROR(check_location(locations[k]));
    std::fill(places.begin() + static_cast<ptrdiff_t>(first),
              places.begin() + static_cast<ptrdiff_t>(end), &locations[k]);
  }
  RCUDA_RETURN_IF_CUDA_ERROR(find_stream_route(stream).result());
  rcuda::MutexLock lock(advice_mutex);
  for (size_t i = 0; i < count; ++i) {
    if (places[i]) advices().of(ranges[i]).prefetched_to(*places[i]);
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace
namespace wire = rcuda::wire;

extern "C" {

CUresult cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes, unsigned flags) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!pointer || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  RCUDA_ASSIGN_OR_RETURN(const Route route, find_current_route());
  if (bytes == 0) {
    *pointer = 0;
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (bytes > kLargeBytes && is_in_worker()) {
    const CUresult result = allocate_in_worker(route, pointer, bytes, flags);
    if (result != CUDA_ERROR_NOT_SUPPORTED) return result;
  }
  void* memory = nullptr;
  const CUresult result = allocate_host(&memory, bytes, flags, true);
  if (result == CUDA_SUCCESS) *pointer = reinterpret_cast<uintptr_t>(memory);
  return result;
}

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                        CUmemLocation location) {
  Allocation allocation;
  RCUDA_RETURN_IF_CUDA_ERROR(find_managed(address, bytes, &allocation));
  // For a device that does not exist, advice returns CUDA_ERROR_INVALID_VALUE, unlike a prefetch.
  if (!rcuda::cuda::is_known(location.type) || (rcuda::cuda::ManagedAdvice::uses_location(advice) &&
                                                check_location(location) != CUDA_SUCCESS)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  rcuda::MutexLock lock(advice_mutex);
  return advices().of(allocation).take(advice, location);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location,
                               unsigned flags, CUstream stream) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Allocation allocation;
  RCUDA_RETURN_IF_CUDA_ERROR(find_managed(address, bytes, &allocation));
  RCUDA_RETURN_IF_CUDA_ERROR(check_location(location));
  RCUDA_RETURN_IF_CUDA_ERROR(find_stream_route(stream).result());
  rcuda::MutexLock lock(advice_mutex);
  advices().of(allocation).prefetched_to(location);
  return CUDA_SUCCESS;
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr* addresses, size_t* bytes, size_t count,
                                 CUmemLocation* locations, size_t* location_starts,
                                 size_t location_count, unsigned long long flags, CUstream stream) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!locations || !location_starts || location_count == 0) return CUDA_ERROR_INVALID_VALUE;
  return prefetch_batch(addresses, bytes, count, locations, location_starts, location_count, flags,
                        stream);
}

CUresult cuMemDiscardBatchAsync(CUdeviceptr* addresses, size_t* bytes, size_t count,
                                unsigned long long flags, CUstream stream) {
  return prefetch_batch(addresses, bytes, count, nullptr, nullptr, 0, flags, stream);
}

CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr* addresses, size_t* bytes, size_t count,
                                           CUmemLocation* locations, size_t* location_starts,
                                           size_t location_count, unsigned long long flags,
                                           CUstream stream) {
  return cuMemPrefetchBatchAsync(addresses, bytes, count, locations, location_starts,
                                 location_count, flags, stream);
}

CUresult cuMemRangeGetAttribute(void* data, size_t data_bytes, CUmem_range_attribute attribute,
                                CUdeviceptr address, size_t bytes) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  Allocation allocation;
  RCUDA_RETURN_IF_CUDA_ERROR(find_managed(address, bytes, &allocation));
  rcuda::MutexLock lock(advice_mutex);
  return advices().of(allocation).get(attribute, data, data_bytes);
}

CUresult cuMemRangeGetAttributes(void** data, size_t* data_bytes, CUmem_range_attribute* attributes,
                                 size_t count, CUdeviceptr address, size_t bytes) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!data || !data_bytes || !attributes || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    RCUDA_RETURN_IF_CUDA_ERROR(
        cuMemRangeGetAttribute(data[i], data_bytes[i], attributes[i], address, bytes));
  }
  return CUDA_SUCCESS;
}

// Only checks its arguments. In CUDA, an attachment limits access by the host and by other streams
// while kernels run. Here the host and all streams always have access.
CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t bytes,
                                unsigned flags) {
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute route, find_stream_route(stream));
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
      flags != CU_MEM_ATTACH_SINGLE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (flags == CU_MEM_ATTACH_SINGLE && route.id == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto found = Process::get().memory().find(address);
  if (!found || !is_managed(*found) || found->base != address ||
      (bytes != 0 && bytes != found->bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
