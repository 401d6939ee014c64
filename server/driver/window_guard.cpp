#include "server/driver/window_guard.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "common/base/log.h"
#include "common/base/mutex.h"

namespace rcuda::server {
namespace {

// Limits of what is kept outside, so that a driver that always allocates there is refused.
constexpr size_t kMostPieces = 64;
constexpr uint64_t kMostKeptBytes = 256ull << 20;
// Reservations begin at a multiple of this at least.
constexpr uint64_t kGranule = 2ull << 20;

// Of the guard that exists.
const api::DriverTable* driver = nullptr;
const AddressFence* fence = nullptr;
std::atomic<bool> told{false};

// Plain memory outside that waits for a moment when it may be freed.
struct Kept {
  Mutex mutex;
  std::vector<CUdeviceptr> pieces RCUDA_GUARDED_BY(mutex);
  uint64_t bytes RCUDA_GUARDED_BY(mutex) = 0;
};
Kept& kept() {
  static auto* pieces = new Kept;
  return *pieces;
}

CUresult refuse(const char* what, uint64_t bytes) {
  if (!told.exchange(true)) {
    uint64_t inside = 0;
    for (const wire::AddressWindow& window : fence->inside()) inside += window.bytes;
    RCUDA_WARN(
        "%s of %llu MiB lies outside of the %llu GiB of addresses that this session has on this "
        "server, and is refused: free memory or reservations, or name fewer servers in "
        "RCUDA_DEVICES",
        what, static_cast<unsigned long long>(bytes >> 20),
        static_cast<unsigned long long>(inside >> 30));
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// ---- plain memory ------------------------------------------------------------------------------

// False: the piece would be too much.
bool keep(CUdeviceptr address, uint64_t bytes) {
  Kept& all = kept();
  MutexLock lock(all.mutex);
  // Even what is too much is kept: to free it now could wait for the device.
  all.pieces.push_back(address);
  all.bytes += bytes;
  return all.pieces.size() < kMostPieces && all.bytes < kMostKeptBytes;
}

// Calls `allocate`, which sets *address, until the address is inside.
template <typename Allocate>
CUresult allocate_inside(const CUdeviceptr* address, uint64_t bytes, const Allocate& allocate) {
  for (;;) {
    const CUresult result = allocate();
    if (result != CUDA_SUCCESS || fence->contains(*address, bytes)) return result;
    const bool again = keep(*address, bytes);
    fence->close_holes();
    if (!again) return refuse("an allocation", bytes);
  }
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

CUresult alloc_managed(CUdeviceptr* address, size_t bytes, unsigned flags) {
  return allocate_inside(address, bytes,
                         [&] { return driver->cuMemAllocManaged(address, bytes, flags); });
}

// A free may wait for the device, and this one has been allowed to. So the kept pieces go too.
CUresult free_plain(CUdeviceptr address) {
  const CUresult result = driver->cuMemFree_v2(address);
  std::vector<CUdeviceptr> pieces;
  {
    Kept& all = kept();
    MutexLock lock(all.mutex);
    pieces.swap(all.pieces);
    all.bytes = 0;
  }
  for (const CUdeviceptr piece : pieces) (void)driver->cuMemFree_v2(piece);
  if (!pieces.empty()) fence->close_holes();
  return result;
}

CUresult open_ipc(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  // While the memory is open, opening it again gives the same address. So there is one more try.
  for (int tries = 0;; ++tries) {
    const CUresult result = driver->cuIpcOpenMemHandle_v2(address, handle, flags);
    if (result != CUDA_SUCCESS || fence->contains(*address, 1)) return result;
    (void)driver->cuIpcCloseMemHandle(*address);
    if (fence->close_holes() == 0 || tries > 0) return refuse("memory of another process", 0);
  }
}

// ---- pools and graphs --------------------------------------------------------------------------

CUresult give_back_outside(CUresult result, const CUdeviceptr* address, size_t bytes,
                           CUstream stream) {
  if (result != CUDA_SUCCESS || *address == 0 || fence->contains(*address, bytes)) return result;
  // In a stream that is captured this adds a node, as the allocation has.
  (void)driver->cuMemFreeAsync(*address, stream);
  return refuse("memory of a pool", bytes);
}

CUresult alloc_async(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return give_back_outside(driver->cuMemAllocAsync(address, bytes, stream), address, bytes, stream);
}

CUresult alloc_from_pool(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return give_back_outside(driver->cuMemAllocFromPoolAsync(address, bytes, pool, stream), address,
                           bytes, stream);
}

CUresult add_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                  CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  const CUresult result =
      driver->cuGraphAddMemAllocNode(node, graph, dependencies, count, parameters);
  if (result != CUDA_SUCCESS || fence->contains(parameters->dptr, parameters->bytesize)) {
    return result;
  }
  (void)driver->cuGraphDestroyNode(*node);
  return refuse("memory of a graph", parameters->bytesize);
}

// ---- reservations ------------------------------------------------------------------------------

// An aligned place inside where `bytes` are free; 0 if there is none.
CUdeviceptr free_place(size_t bytes, size_t alignment) {
  const Result<std::vector<AddressRange>> mappings = own_mappings();
  if (!mappings.ok()) return 0;
  const uint64_t unit = std::max<uint64_t>(alignment, kGranule);
  for (const wire::AddressWindow& window : fence->inside()) {
    for (const AddressRange& gap : gaps(*mappings, window.base, window.base + window.bytes)) {
      const uint64_t begin = (gap.begin + unit - 1) / unit * unit;
      if (begin < gap.end && bytes <= gap.end - begin) return begin;
    }
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
  if (result != CUDA_SUCCESS || fence->contains(*address, bytes)) return result;
  (void)driver->cuMemAddressFree(*address, bytes);
  fence->close_holes();
  const CUdeviceptr place = free_place(bytes, alignment);
  if (place == 0) return refuse("a reservation", bytes);
  result = driver->cuMemAddressReserve(address, bytes, alignment, place, flags);
  if (result != CUDA_SUCCESS || fence->contains(*address, bytes)) return result;
  (void)driver->cuMemAddressFree(*address, bytes);
  return refuse("a reservation", bytes);
}

template <typename Function>
void replace(Function*& entry, Function* guarded) {
  if (entry) entry = guarded;  // an older driver may lack it
}

}  // namespace

WindowGuard::WindowGuard(const api::DriverTable& plain, const AddressFence& around)
    : guarded_(plain) {
  driver = &plain;
  fence = &around;
  replace(guarded_.cuMemAlloc_v2, &alloc);
  replace(guarded_.cuMemAllocPitch_v2, &alloc_pitch);
  replace(guarded_.cuMemAllocManaged, &alloc_managed);
  replace(guarded_.cuMemFree_v2, &free_plain);
  replace(guarded_.cuIpcOpenMemHandle_v2, &open_ipc);
  replace(guarded_.cuMemAllocAsync, &alloc_async);
  replace(guarded_.cuMemAllocFromPoolAsync, &alloc_from_pool);
  replace(guarded_.cuGraphAddMemAllocNode, &add_node);
  replace(guarded_.cuMemAddressReserve, &reserve);
}

WindowGuard::~WindowGuard() {
  MutexLock lock(kept().mutex);
  kept().pieces.clear();
  kept().bytes = 0;
  driver = nullptr;
  fence = nullptr;
}

}  // namespace rcuda::server
