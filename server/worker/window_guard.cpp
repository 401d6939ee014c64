#include "server/worker/window_guard.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "common/base/address_space.h"
#include "common/base/log.h"

namespace rcuda::server {
namespace {

// A driver cuts small memory from pages of this size. Larger memory outside is no left-over.
constexpr size_t kLargestPiece = size_t{2} << 20;
// What one allocation may keep: all of a page in the smallest pieces, or a few pages.
constexpr size_t kMostPieces = 4096;
constexpr size_t kMostKeptBytes = size_t{64} << 20;

const api::DriverTable* driver = nullptr;
wire::AddressWindow window;
std::atomic<bool> told{false};

bool inside(CUdeviceptr address, size_t bytes) {
  return address >= window.base && address - window.base < window.bytes &&
         bytes <= window.bytes - (address - window.base);
}

CUresult refuse(const char* what, size_t bytes) {
  if (!told.exchange(true)) {
    RCUDA_WARN(
        "%s of %zu MiB lies outside of the %llu GiB of addresses that this session has on this "
        "server, and is refused: free memory or reservations, or name fewer servers in "
        "RCUDA_DEVICES",
        what, bytes >> 20, static_cast<unsigned long long>(window.bytes >> 30));
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// Calls `allocate`, which sets *address, until the address is inside.
template <typename Allocate>
CUresult allocate_inside(CUdeviceptr* address, size_t bytes, const Allocate& allocate) {
  for (size_t pieces = 0; pieces < kMostPieces && pieces * bytes < kMostKeptBytes; ++pieces) {
    const CUresult result = allocate();
    if (result != CUDA_SUCCESS || inside(*address, bytes)) return result;
    // A piece outside stays allocated, so that the driver has to take another address.
    if (bytes <= kLargestPiece) continue;
    driver->cuMemFree_v2(*address);
    break;
  }
  return refuse("an allocation", bytes);
}

CUresult alloc(CUdeviceptr* address, size_t bytes) {
  return allocate_inside(address, bytes, [&] { return driver->cuMemAlloc_v2(address, bytes); });
}

CUresult alloc_pitch(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                     unsigned element) {
  return allocate_inside(address, width * height, [&] {
    return driver->cuMemAllocPitch_v2(address, pitch, width, height, element);
  });
}

CUresult keep_or_free(CUresult result, CUdeviceptr* address, size_t bytes, CUstream stream) {
  if (result != CUDA_SUCCESS || *address == 0 || inside(*address, bytes)) return result;
  driver->cuMemFreeAsync(*address, stream);
  return refuse("memory of a pool", bytes);
}

CUresult alloc_async(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return keep_or_free(driver->cuMemAllocAsync(address, bytes, stream), address, bytes, stream);
}

CUresult alloc_from_pool(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return keep_or_free(driver->cuMemAllocFromPoolAsync(address, bytes, pool, stream), address, bytes,
                      stream);
}

// An aligned place in the window where `bytes` are free; 0 if there is none.
CUdeviceptr free_place(size_t bytes, size_t alignment) {
  const Result<std::vector<AddressRange>> mappings = own_mappings();
  if (!mappings.ok()) return 0;
  const uint64_t unit = std::max<uint64_t>(alignment, kLargestPiece);
  for (const AddressRange& gap : gaps(*mappings, window.base, window.base + window.bytes)) {
    const uint64_t begin = (gap.begin + unit - 1) / unit * unit;
    if (begin < gap.end && bytes <= gap.end - begin) return begin;
  }
  return 0;
}

CUresult reserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr hint,
                 unsigned long long flags) {
  CUresult result = driver->cuMemAddressReserve(address, bytes, alignment, hint, flags);
  // From a hint that is in use the driver looks upwards only: on an H100, up to the end of the
  // user's addresses, which are closed here.
  if (result == CUDA_ERROR_OUT_OF_MEMORY && hint != 0) {
    result = driver->cuMemAddressReserve(address, bytes, alignment, 0, flags);
  }
  if (result != CUDA_SUCCESS || inside(*address, bytes)) return result;
  driver->cuMemAddressFree(*address, bytes);
  const CUdeviceptr place = free_place(bytes, alignment);
  if (place == 0) return refuse("a reservation", bytes);
  result = driver->cuMemAddressReserve(address, bytes, alignment, place, flags);
  if (result != CUDA_SUCCESS || inside(*address, bytes)) return result;
  driver->cuMemAddressFree(*address, bytes);
  return refuse("a reservation", bytes);
}

template <typename Function>
void replace(Function*& entry, Function* guarded) {
  if (entry) entry = guarded;  // an older driver may lack it
}

}  // namespace

WindowGuard::WindowGuard(const api::DriverTable& plain, const wire::AddressWindow& of_session)
    : guarded_(plain) {
  driver = &plain;
  window = of_session;
  replace(guarded_.cuMemAlloc_v2, &alloc);
  replace(guarded_.cuMemAllocPitch_v2, &alloc_pitch);
  replace(guarded_.cuMemAllocAsync, &alloc_async);
  replace(guarded_.cuMemAllocFromPoolAsync, &alloc_from_pool);
  replace(guarded_.cuMemAddressReserve, &reserve);
}

WindowGuard::~WindowGuard() { driver = nullptr; }

}  // namespace rcuda::server
