#include "client/copy/peer_node.h"

#include <memory>

#include "client/copy/locate.h"
#include "client/objects/arena.h"
#include "client/route/capture.h"
#include "client/route/host_functions.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

struct NodeSide {
  const Session* session = nullptr;  // null: host memory
  bool is_array = false;
  std::optional<PeerSide> memory;  // device memory
};

// Describes one side of the copy. `shape`: the side's address (not used for an array), pitch,
// height and position.
CUresult find_side(CUmemorytype type, CUarray array, const Extent& extent,
                   wire::CopyShapeSide shape, NodeSide* side) {
  if (type == CU_MEMORYTYPE_ARRAY) {
    const auto* object = find<Array>(array);
    side->session = object ? object->session : nullptr;
    side->is_array = true;
    return CUDA_SUCCESS;
  }
  if (type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED) return CUDA_SUCCESS;
  Location location;
  RCUDA_RETURN_IF_CUDA_ERROR(locate_rows(extent, Side::kAny, &shape, &location));
  if (!location.owner) return CUDA_SUCCESS;
  side->memory.emplace(PeerSide{*location.owner, location.first, shape.pitch_bytes,
                                shape.pitch_bytes * shape.height});
  side->session = location.owner->session;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult copy_between_servers_of(const CUDA_MEMCPY3D& given,
                                 std::optional<CopyBetweenServers>* copy) {
  copy->reset();
  if (given.WidthInBytes == 0 || given.Height == 0 || given.Depth == 0) return CUDA_SUCCESS;
  const Extent extent{given.WidthInBytes, given.Height, given.Depth};
  if (!is_real(extent)) return CUDA_ERROR_INVALID_VALUE;
  wire::CopyShapeSide to{}, from{};
  to.address = given.dstDevice;
  to.pitch_bytes = given.dstPitch;
  to.height = given.dstHeight;
  to.x_bytes = given.dstXInBytes;
  to.y = given.dstY;
  to.z = given.dstZ;
  from.address = given.srcDevice;
  from.pitch_bytes = given.srcPitch;
  from.height = given.srcHeight;
  from.x_bytes = given.srcXInBytes;
  from.y = given.srcY;
  from.z = given.srcZ;
  NodeSide destination, source;
  RCUDA_RETURN_IF_CUDA_ERROR(
      find_side(given.dstMemoryType, given.dstArray, extent, to, &destination));
  RCUDA_RETURN_IF_CUDA_ERROR(find_side(given.srcMemoryType, given.srcArray, extent, from, &source));
  if (!destination.session || !source.session || destination.session == source.session) {
    return CUDA_SUCCESS;
  }
  if (destination.is_array || source.is_array) return CUDA_ERROR_NOT_SUPPORTED;
  copy->emplace(CopyBetweenServers{
      *destination.memory, *source.memory, {given.WidthInBytes, given.Height, given.Depth}});
  return CUDA_SUCCESS;
}

WorkerEvents::GraphCallback node_function_of(const CopyBetweenServers& copy,
                                             const CUDA_MEMCPY3D& given) {
  WorkerEvents::GraphCallback callback;
  callback.function = [copy] { copy_between_servers_now(copy); };
  callback.is_internal = true;
  callback.copy = std::make_shared<const CUDA_MEMCPY3D>(given);
  return callback;
}

CUDA_MEMCPY3D parameters_of(const CopyBetweenServers& copy) {
  CUDA_MEMCPY3D parameters{};
  parameters.WidthInBytes = copy.extent.width_bytes;
  parameters.Height = copy.extent.height;
  parameters.Depth = copy.extent.depth;
  const auto rows = [](const PeerSide& side) {
    return side.pitch_bytes ? side.slice_bytes / side.pitch_bytes : 0;
  };
  parameters.srcMemoryType = parameters.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  parameters.srcDevice = copy.source.address;
  parameters.srcPitch = copy.source.pitch_bytes;
  parameters.srcHeight = rows(copy.source);
  parameters.dstDevice = copy.destination.address;
  parameters.dstPitch = copy.destination.pitch_bytes;
  parameters.dstHeight = rows(copy.destination);
  return parameters;
}

bool may_become(const CopyBetweenServers& before, const CopyBetweenServers& after) {
  const auto same = [](const Route& a, const Route& b) {
    return a.session == b.session && a.device == b.device;
  };
  return same(before.source.owner, after.source.owner) &&
         same(before.destination.owner, after.destination.owner);
}

CUresult issue_between_servers(const CopyBetweenServers& copy, CUstream stream, bool synchronous) {
  if (!may_capture(stream)) return copy_between_servers(copy, stream, synchronous);
  return launch_graph_function(stream, node_function_of(copy, parameters_of(copy)));
}

}  // namespace rcuda::client
