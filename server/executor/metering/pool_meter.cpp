#include "server/executor/metering/pool_meter.h"

#include <utility>

namespace rcuda::server {

void PoolMeter::know(CUmemoryPool pool, const CUmemLocation& location, bool created) {
  const CUdevice device =
      location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : MemoryMeter::kHost;
  pools_.try_emplace(pool, Pool{device, 0, created});
}

void PoolMeter::know_defaults() {
  if (std::exchange(defaults_known_, true)) return;
  for (const SessionDevice& device : devices_) {
    CUmemoryPool pool = nullptr;
    if (driver_.cuDeviceGetDefaultMemPool(&pool, device.device) == CUDA_SUCCESS) {
      know(pool, {CU_MEM_LOCATION_TYPE_DEVICE, {device.device}});
    }
  }
}

CUmemoryPool PoolMeter::current_of(CUdevice device) {
  know_defaults();
  CUmemoryPool pool = nullptr;
  return driver_.cuDeviceGetMemPool(&pool, device) == CUDA_SUCCESS ? pool : nullptr;
}

std::optional<uint64_t> PoolMeter::size_of(CUmemoryPool pool) const {
  cuuint64_t bytes = 0;
  const CUresult result =
      driver_.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
  // After these errors the pool does not exist: it ended with its device's contexts.
  if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE) return 0;
  return result == CUDA_SUCCESS ? std::optional<uint64_t>(bytes) : std::nullopt;
}

void PoolMeter::book_release(CUmemoryPool handle, Pool& pool) {
  const auto size = size_of(handle);
  if (!size || *size >= pool.booked) return;
  meter_.give(pool.device, pool.booked - *size);
  pool.booked = *size;
}

bool PoolMeter::may_hold(CUmemoryPool pool, uint64_t bytes) {
  const auto found = pools_.find(pool);
  if (found == pools_.end()) return true;
  book_release(pool, found->second);
  const uint64_t held = found->second.booked;
  if (bytes <= held) return true;
  if (!meter_.take(found->second.device, bytes - held)) return false;
  meter_.give_back(found->second.device, bytes - held);
  return true;
}

bool PoolMeter::book_growth(CUmemoryPool pool) {
  const auto found = pools_.find(pool);
  if (found == pools_.end()) return true;
  auto& [device, booked, created, ending] = found->second;
  uint64_t size = size_of(pool).value_or(0);
  // An earlier refused allocation is freed in stream order, and may still be booked beyond the
  // limit. If the driver reuses its memory, the pool does not grow. So the limit is checked even
  // without a growth.
  if (size <= booked) return meter_.take(device, 0);
  bool fits = meter_.try_take(device, size - booked);
  if (!fits) {
    meter_.reclaim();
    size = size_of(pool).value_or(0);
    if (size <= booked) return meter_.try_take(device, 0);
    fits = meter_.try_take(device, size - booked);
    if (!fits) meter_.add(device, size - booked);
  }
  booked = size;
  return fits;
}

void PoolMeter::refresh() {
  for (auto at = pools_.begin(); at != pools_.end();) {
    auto& [handle, pool] = *at;
    if (pool.booked) book_release(handle, pool);
    const bool over = pool.ending && pool.booked == 0;
    if (over) driver_.cuMemPoolDestroy(handle);
    at = over ? pools_.erase(at) : std::next(at);
  }
}

void PoolMeter::trim() {
  for (const auto& [handle, pool] : pools_) driver_.cuMemPoolTrimTo(handle, 0);
  refresh();
}

CUresult PoolMeter::destroy(CUmemoryPool handle) {
  const auto found = pools_.find(handle);
  if (found == pools_.end() || !found->second.created || found->second.ending) {
    return driver_.cuMemPoolDestroy(handle);
  }
  if (!may_delay_) {
    const CUresult result = driver_.cuMemPoolDestroy(handle);
    if (result != CUDA_SUCCESS) return result;
    meter_.give(found->second.device, found->second.booked);
    pools_.erase(found);
    return CUDA_SUCCESS;
  }
  const CUdevice device = found->second.device;
  found->second.ending = true;
  cuuint64_t keep = 0;
  driver_.cuMemPoolSetAttribute(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
  // Makes the default pool the device's current pool, as a driver does when it destroys the current
  // pool.
  CUmemoryPool fallback = nullptr;
  if (device != MemoryMeter::kHost && current_of(device) == handle &&
      driver_.cuDeviceGetDefaultMemPool(&fallback, device) == CUDA_SUCCESS) {
    driver_.cuDeviceSetMemPool(device, fallback);
  }
  driver_.cuMemPoolTrimTo(handle, 0);
  refresh();
  return CUDA_SUCCESS;
}

}  // namespace rcuda::server
