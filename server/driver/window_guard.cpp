#include "server/driver/window_guard.h"

#include <algorithm>

#include "api/driver_overrides.h"
#include "common/base/log.h"
#include "common/base/units.h"

namespace rcuda::server {
namespace {

// Limits of the pieces outside of base and window that hold() keeps. At a limit, the guard stops
// trying.
constexpr size_t kMostPieces = 64;
constexpr uint64_t kMostHeldBytes = 256ull << 20;
// The least alignment of a reservation.
constexpr uint64_t kGranule = 2ull << 20;

// Returns an aligned address where `bytes` of the worker's own addresses are free, or 0.
CUdeviceptr free_place(const AddressFence& fence, size_t bytes, size_t alignment) {
  const Result<std::vector<AddressRange>> mappings = own_mappings();
  if (!mappings.ok()) return 0;
  const uint64_t unit = std::max<uint64_t>(alignment, kGranule);
  for (const wire::AddressWindow& window : fence.inside()) {
    for (const AddressRange& gap : gaps(*mappings, window.base, window.base + window.bytes)) {
      const uint64_t begin = (gap.begin + unit - 1) / unit * unit;
      if (begin < gap.end && bytes <= gap.end - begin) return begin;
    }
  }
  return 0;
}

}  // namespace

WindowGuard::WindowGuard(const api::DriverTable& plain, const AddressFence& around)
    : driver(plain), fence(around), guarded_(plain, *this) {
  guard_addresses(guarded_);
}

CUresult WindowGuard::refuse(const char* what, uint64_t bytes) {
  if (!has_refused_.exchange(true)) {
    uint64_t inside = 0;
    for (const wire::AddressWindow& window : fence.inside()) inside += window.bytes;
    const std::string size = bytes == 0 ? "" : " of " + bytes_text(bytes);
    RCUDA_WARN(
        "the driver placed %s%s outside of the %s of addresses that this session may use on this "
        "server, so the call fails: free memory or reserved addresses, or name fewer servers in "
        "RCUDA_DEVICES",
        what, size.c_str(), bytes_text(inside).c_str());
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

bool WindowGuard::hold(CUdeviceptr address, uint64_t bytes) {
  MutexLock lock(mutex_);
  held_.push_back(address);
  held_bytes_ += bytes;
  return held_.size() < kMostPieces && held_bytes_ < kMostHeldBytes;
}

void WindowGuard::free_held() {
  std::vector<CUdeviceptr> pieces;
  {
    MutexLock lock(mutex_);
    pieces.swap(held_);
    held_bytes_ = 0;
  }
  for (const CUdeviceptr piece : pieces) (void)driver.cuMemFree_v2(piece);
  if (!pieces.empty()) fence.close_holes();
}

// Also frees the held pieces: freeing them may wait for the device, as the program's own free may.
CUresult guard_cuMemFree_v2(WindowGuard& guard, CUdeviceptr address) {
  const CUresult result = guard.driver.cuMemFree_v2(address);
  guard.free_held();
  return result;
}

CUresult guard_cuIpcOpenMemHandle_v2(WindowGuard& guard, CUdeviceptr* address,
                                     CUipcMemHandle handle, unsigned flags) {
  // If the program already has the memory open, each try returns the same address. So there is only
  // one more try.
  for (int tries = 0;; ++tries) {
    const CUresult result = guard.driver.cuIpcOpenMemHandle_v2(address, handle, flags);
    if (result != CUDA_SUCCESS || guard.contains(address, 1)) return result;
    (void)guard.driver.cuIpcCloseMemHandle(*address);
    if (guard.fence.close_holes() == 0 || tries > 0) {
      return guard.refuse("memory of another process", 0);
    }
  }
}

CUresult guard_cuMemAddressReserve(WindowGuard& guard, CUdeviceptr* address, size_t bytes,
                                   size_t alignment, CUdeviceptr hint, unsigned long long flags) {
  const api::DriverTable& driver = guard.driver;
  CUresult result = driver.cuMemAddressReserve(address, bytes, alignment, hint, flags);
  // If the hint is in use, the driver searches only above the hint (on an H100, up to the end of
  // user space), and finds only addresses that the fence has closed. Without a hint, it searches
  // all addresses from the bottom up.
  if (result == CUDA_ERROR_OUT_OF_MEMORY && hint != 0) {
    result = driver.cuMemAddressReserve(address, bytes, alignment, 0, flags);
  }
  if (result != CUDA_SUCCESS || guard.contains(address, bytes)) return result;
  (void)driver.cuMemAddressFree(*address, bytes);
  guard.fence.close_holes();
  const CUdeviceptr place = free_place(guard.fence, bytes, alignment);
  if (place == 0) return guard.refuse("a reservation", bytes);
  result = driver.cuMemAddressReserve(address, bytes, alignment, place, flags);
  if (result != CUDA_SUCCESS || guard.contains(address, bytes)) return result;
  (void)driver.cuMemAddressFree(*address, bytes);
  return guard.refuse("a reservation", bytes);
}

}  // namespace rcuda::server
