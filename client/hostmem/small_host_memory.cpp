#include "client/hostmem/small_host_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "client/hostmem/host_region.h"
#include "client/hostmem/small_pieces.h"
#include "client/mirror/mirror.h"
#include "client/objects/kinds.h"
#include "client/route/capture.h"
#include "client/route/find_route.h"
#include "common/base/mutex.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

// Returns the size of the next region. `all_bytes`: the size of all regions so far. The first
// regions have at most transport::kMaxRegionPut bytes, because a wait fetches the changes of such a
// region in one round trip. In a larger region, a kernel of the worker first searches for changed
// blocks, which costs time.
size_t next_region_bytes(size_t all_bytes, size_t piece_bytes) {
  constexpr size_t kLeast = 4u << 10, kLarge = 1u << 20;
  if (all_bytes >= kLarge) return kLarge;
  return std::clamp(std::max(3 * all_bytes, piece_bytes), kLeast, transport::kMaxRegionPut);
}

struct SmallMemory {
  Mutex mutex;  // also held while a region is made or ended
  SmallPieces pieces RCUDA_GUARDED_BY(mutex);
  std::map<uint64_t, HostRegion> regions RCUDA_GUARDED_BY(mutex);
  struct Piece {
    void* memory;
    size_t bytes;
  };
  // Pieces that the program freed during a capture, when no call may wait for the GPU. The first
  // free after the capture releases them.
  std::vector<Piece> late RCUDA_GUARDED_BY(mutex);

  static SmallMemory& get() {
    static auto* instance = new SmallMemory;
    return *instance;
  }
};

CUresult add_region(const Route& route, size_t piece_bytes, SmallMemory* all)
    RCUDA_REQUIRES(all->mutex) {
  HostRegion region;
  const size_t bytes = next_region_bytes(all->pieces.bytes(), piece_bytes);
  RCUDA_RETURN_IF_CUDA_ERROR(make_region(route, bytes, &region));
  mirror_region(region);
  const auto base = reinterpret_cast<uintptr_t>(region.address);
  all->pieces.add({base, region.bytes});
  all->regions.emplace(base, std::move(region));
  return CUDA_SUCCESS;
}

// Waits until no work can use the piece any more: until all contexts of the sessions that mirror
// the piece are idle.
void await_users(const SmallMemory::Piece& piece) {
  for (const Route& mirrored :
       mirrored_in(reinterpret_cast<uintptr_t>(piece.memory), piece.bytes)) {
    std::vector<wire::ObjectId> contexts;
    select<Context>([&](const Context& context) {
      if (context.session == mirrored.session && !context.given_back)
        contexts.push_back(context.id);
      return false;
    });
    for (const wire::ObjectId context : contexts) (void)await_idle(*mirrored.session, context);
  }
}

void free_piece(const Route& route, const SmallMemory::Piece& piece, SmallMemory* all) {
  await_users(piece);
  std::memset(piece.memory, 0, piece.bytes);
  MutexLock lock(all->mutex);
  const auto empty = all->pieces.give_back(reinterpret_cast<uintptr_t>(piece.memory));
  if (!empty) return;
  const auto region = all->regions.extract(empty->base);
  unmirror(region.mapped().address);
  end_region(region.mapped(), route);
}

}  // namespace

CUresult take_small(const Route& route, size_t bytes, void** memory) {
  *memory = nullptr;
  if (route.session->lost()) return kSessionLost;
  if (bytes > kMostSmallBytes || !any_mirrors_regions()) return CUDA_SUCCESS;
  SmallMemory& all = SmallMemory::get();
  MutexLock lock(all.mutex);
  uint64_t address = all.pieces.take(bytes);
  if (address == 0) {
    RCUDA_RETURN_IF_CUDA_ERROR(add_region(route, bytes, &all));
    address = all.pieces.take(bytes);
  }
  *memory = reinterpret_cast<void*>(address);
  return CUDA_SUCCESS;
}

bool give_back_small(const Route& route, void* memory, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  SmallMemory& all = SmallMemory::get();
  {
    MutexLock lock(all.mutex);
    if (!all.pieces.has(address)) return false;
  }
  // Work in progress may still write to the memory, and the next owner must not see these writes.
  std::vector<SmallMemory::Piece> free{{memory, bytes}};
  {
    MutexLock lock(all.mutex);
    free.insert(free.end(), all.late.begin(), all.late.end());
    all.late.clear();
    if (any_capture()) all.late.swap(free);
  }
  for (const SmallMemory::Piece& piece : free) free_piece(route, piece, &all);
  return true;
}

}  // namespace rcuda::client
