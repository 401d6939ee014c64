// cuMemAdvise, prefetches, discards, cuMemRangeGetAttribute: hints about managed memory. In
// softgpu, managed memory is ordinary memory that host and devices share, so nothing has to be
// moved.
#include <mutex>
#include <vector>

#include <cuda.h>

#include "common/cuda/known_values.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/operation.h"

using namespace softgpu::driver;

namespace {

std::mutex& advice_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

// The older forms give a location as a device ordinal or CU_DEVICE_CPU.
CUmemLocation location_of(CUdevice device) {
  CUmemLocation location{};
  location.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device == CU_DEVICE_CPU ? 0 : device;
  return location;
}

CUresult check_location(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return device_at(location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult find_managed(CUdeviceptr address, size_t bytes, std::shared_ptr<Allocation>* allocation) {
  if (bytes == 0 || !memory_registry().covered(address, bytes, allocation) ||
      (*allocation)->kind != MemoryKind::kManaged) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult advise(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                const CUmemLocation& location) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  std::shared_ptr<Allocation> allocation;
  if (CUresult result = find_managed(address, bytes, &allocation)) return result;
  // For a device that does not exist, a prefetch returns CUDA_ERROR_INVALID_DEVICE instead.
  if (!rcuda::cuda::is_known(location.type) || (rcuda::cuda::ManagedAdvice::uses_location(advice) &&
                                                check_location(location) != CUDA_SUCCESS)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::lock_guard lock(advice_mutex());
  return allocation->advice.take(advice, location);
}

CUresult prefetch(CUdeviceptr address, size_t bytes, const CUmemLocation& location,
                  CUstream stream) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  std::shared_ptr<Allocation> allocation;
  if (CUresult result = find_managed(address, bytes, &allocation)) return result;
  if (CUresult result = check_location(location)) return result;
  {
    std::lock_guard lock(advice_mutex());
    allocation->advice.prefetched_to(location);
  }
  return submit(stream, EmptyOperation{});
}

// One range of a batch and its destination.
struct Prefetch {
  std::shared_ptr<Allocation> allocation;
  CUmemLocation location{};
};

// Checks a whole batch. Without `locations` the batch only discards.
CUresult read_batch(const CUdeviceptr* addresses, const size_t* bytes, size_t count,
                    const CUmemLocation* locations, const size_t* location_indices,
                    size_t location_count, unsigned long long flags, CUstream stream,
                    std::vector<Prefetch>* batch) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!addresses || !bytes || count == 0 || flags != 0 || !stream || stream == CU_STREAM_LEGACY) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < count; ++i) {
    Prefetch& range = batch->emplace_back();
    if (CUresult result = find_managed(addresses[i], bytes[i], &range.allocation)) return result;
  }
  for (size_t k = 0; k < location_count; ++k) {
    const size_t first = location_indices[k];
    const size_t end = k + 1 < location_count ? location_indices[k + 1] : count;
    if ((k == 0 && first != 0) || end <= first || end > count) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult result = check_location(locations[k])) return result;
    for (size_t i = first; i < end; ++i) (*batch)[i].location = locations[k];
  }
  return CUDA_SUCCESS;
}

CUresult prefetch_batch(const CUdeviceptr* addresses, const size_t* bytes, size_t count,
                        const CUmemLocation* locations, const size_t* location_indices,
                        size_t location_count, unsigned long long flags, CUstream stream) {
  if (!locations || !location_indices || location_count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Prefetch> batch;
  if (CUresult result = read_batch(addresses, bytes, count, locations, location_indices,
                                   location_count, flags, stream, &batch)) {
    return result;
  }
  {
    std::lock_guard lock(advice_mutex());
    for (const Prefetch& range : batch) range.allocation->advice.prefetched_to(range.location);
  }
  return submit(stream, EmptyOperation{});
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                             CUdevice device) {
  return advise(address, bytes, advice, location_of(device));
}

CUresult CUDAAPI cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                                CUmemLocation location) {
  return advise(address, bytes, advice, location);
}

CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device,
                                    CUstream stream) {
  return prefetch(address, bytes, location_of(device), stream);
}

CUresult CUDAAPI cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location,
                                       unsigned int flags, CUstream stream) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return prefetch(address, bytes, location, stream);
}

CUresult CUDAAPI cuMemPrefetchBatchAsync(CUdeviceptr* addresses, size_t* bytes, size_t count,
                                         CUmemLocation* locations, size_t* location_indices,
                                         size_t location_count, unsigned long long flags,
                                         CUstream stream) {
  return prefetch_batch(addresses, bytes, count, locations, location_indices, location_count, flags,
                        stream);
}

// Discarded memory may have any content afterwards, so this call leaves the memory unchanged.
CUresult CUDAAPI cuMemDiscardBatchAsync(CUdeviceptr* addresses, size_t* bytes, size_t count,
                                        unsigned long long flags, CUstream stream) {
  std::vector<Prefetch> batch;
  if (CUresult result =
          read_batch(addresses, bytes, count, nullptr, nullptr, 0, flags, stream, &batch)) {
    return result;
  }
  return submit(stream, EmptyOperation{});
}

CUresult CUDAAPI cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr* addresses, size_t* bytes,
                                                   size_t count, CUmemLocation* locations,
                                                   size_t* location_indices, size_t location_count,
                                                   unsigned long long flags, CUstream stream) {
  return prefetch_batch(addresses, bytes, count, locations, location_indices, location_count, flags,
                        stream);
}

CUresult CUDAAPI cuMemRangeGetAttribute(void* data, size_t data_bytes,
                                        CUmem_range_attribute attribute, CUdeviceptr address,
                                        size_t bytes) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  std::shared_ptr<Allocation> allocation;
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = find_managed(address, bytes, &allocation)) return result;
  std::lock_guard lock(advice_mutex());
  return allocation->advice.get(attribute, data, data_bytes);
}

CUresult CUDAAPI cuMemRangeGetAttributes(void** data, size_t* data_bytes,
                                         CUmem_range_attribute* attributes, size_t count,
                                         CUdeviceptr address, size_t bytes) {
  if (!data || !data_bytes || !attributes || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (CUresult result =
            cuMemRangeGetAttribute(data[i], data_bytes[i], attributes[i], address, bytes)) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
