#include "client/copy/locate.h"

#include <algorithm>
#include <limits>

#include "client/hostmem/registered_pages.h"
#include "client/objects/named.h"
#include "client/process/process.h"
#include "client/session/wait.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

// Whether a worker can copy the registered memory. A copy can use only one region, and a Link that
// shares pages reaches only regions with a backing (a memory file). Other memory is copied like
// pageable memory, by this process's CPU.
bool is_one_region(uint64_t address, size_t bytes) {
  if (pieces_in_runs(address, bytes).size() != 1) return false;
  const auto& sessions = Process::get().sessions();
  return have_backing(address, bytes) ||
         std::none_of(sessions.begin(), sessions.end(),
                      [](const auto& session) { return session->traits().shares_pages; });
}

// Limit for every number of a shape. Real shapes are smaller, and the product of three numbers up
// to this limit fits into 128 bits.
constexpr size_t kMostOfAny = size_t{1} << 40;

bool is_real(const wire::CopyShapeSide& side) {
  return std::max({side.pitch_bytes, side.height, side.x_bytes, side.y, side.z}) <= kMostOfAny;
}

}  // namespace

bool is_real(const Extent& extent) {
  return std::max({extent.width_bytes, extent.height, extent.depth}) <= kMostOfAny;
}

uint64_t row_address(const wire::CopyShapeSide& side, size_t y, size_t z) {
  return side.address + ((side.z + z) * side.height + side.y + y) * side.pitch_bytes + side.x_bytes;
}

CUresult locate(uint64_t address, size_t bytes, Side side, Location* location) {
  if (address == 0 || address + bytes < address) return CUDA_ERROR_INVALID_VALUE;
  location->first = address;
  location->bytes = bytes;
  Process& process = Process::get();
  const auto known = process.memory().find(address);
  if (known && address + bytes > known->base + known->bytes) {
    // A copy may span adjacent mappings of one reserved range.
    if (known->placement != Placement::kMapped) return CUDA_ERROR_INVALID_VALUE;
  }
  location->sync_memops = known && known->sync_memops;
  if (known && known->session) {
    location->home = Home::kDevice;
    location->owner.emplace(route_of(*known));
    location->of_pool = known->placement == Placement::kDeviceAsync;
    // Managed memory is also host memory.
    return side == Side::kHost && !is_managed(*known) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  }
  if (known && known->reachable &&
      (known->placement != Placement::kRegistered || is_one_region(address, bytes))) {
    location->home = Home::kExposed;
    return CUDA_SUCCESS;
  }
  // A device address that belongs to no allocation was freed, or was never allocated.
  if (process.session_of_address(address)) return CUDA_ERROR_INVALID_VALUE;
  const bool has_device_address = known && known->reachable;
  return side == Side::kDevice && !has_device_address ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult locate_rows(const Extent& extent, Side promised, wire::CopyShapeSide* side,
                     Location* location) {
  wire::CopyShapeSide& shape = *side;
  if (!is_real(shape)) return CUDA_ERROR_INVALID_VALUE;
  if (shape.pitch_bytes == 0) shape.pitch_bytes = shape.x_bytes + extent.width_bytes;
  if (shape.height == 0) shape.height = shape.y + extent.height;
  if (shape.pitch_bytes < shape.x_bytes + extent.width_bytes) return CUDA_ERROR_INVALID_VALUE;
  if (extent.depth > 1 && shape.height < shape.y + extent.height) return CUDA_ERROR_INVALID_VALUE;
  using Wide = unsigned __int128;
  const Wide last_row =
      Wide{shape.z + extent.depth - 1} * shape.height + shape.y + extent.height - 1;
  const Wide end =
      shape.address + last_row * shape.pitch_bytes + shape.x_bytes + extent.width_bytes;
  if (end > std::numeric_limits<uint64_t>::max()) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t first = row_address(shape, 0, 0);
  return locate(first, static_cast<uint64_t>(end) - first, promised, location);
}

CudaResult<CopyStream> stream_at(const std::optional<Route>& owner, CUstream handle) {
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute issued, find_paced_stream(handle));
  if (!owner || issued.session == owner->session) return CopyStream{issued};
  RCUDA_RETURN_IF_CUDA_ERROR(synchronize(issued));
  return CopyStream{in_default_stream(*owner), true};
}

}  // namespace rcuda::client
