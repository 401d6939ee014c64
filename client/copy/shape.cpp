// 2D and 3D copies. If the worker can address both sides, the copy is one command. A pageable side
// is packed into staging slots, or unpacked from them. A slot takes as many whole rows as fit; a
// row that is larger than a slot is split.

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "client/copy/copy.h"
#include "client/copy/peer.h"
#include "client/copy/peer_node.h"
#include "client/copy/plan.h"
#include "client/copy/stand_in.h"
#include "client/mirror/mirror.h"
#include "client/objects/arena.h"
#include "client/objects/named.h"
#include "client/process/process.h"
#include "client/route/capture.h"
#include "client/session/staging.h"
#include "client/session/timeline.h"
#include "client/session/wait.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

struct ShapeSide : Location {
  wire::CopyShapeSide wire{};
};

CUresult find_array(CUarray handle, ShapeSide* side) {
  const auto* array = find<Array>(handle);
  if (!array) return handle ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
  side->home = Home::kDevice;
  side->owner.emplace(route_of(*array));
  side->wire.address = array->id;
  side->wire.type = wire::MemoryType::kArray;
  return CUDA_SUCCESS;
}

CUresult describe(CUmemorytype type, const void* host, CUdeviceptr device, CUarray array,
                  const Extent& extent, ShapeSide* side) {
  Side promised = Side::kAny;
  switch (type) {
    case CU_MEMORYTYPE_ARRAY:
      return find_array(array, side);
    case CU_MEMORYTYPE_HOST:
      side->wire.address = reinterpret_cast<uintptr_t>(host);
      promised = Side::kHost;
      break;
    case CU_MEMORYTYPE_DEVICE:
      side->wire.address = device;
      promised = Side::kDevice;
      break;
    case CU_MEMORYTYPE_UNIFIED:
      side->wire.address = device;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  RCUDA_RETURN_IF_CUDA_ERROR(locate_rows(extent, promised, &side->wire, side));
  side->wire.type =
      side->home == Home::kDevice ? wire::MemoryType::kDevice : wire::MemoryType::kHost;
  return CUDA_SUCCESS;
}

// Sends one piece of a copy. Unlike post(), does not return errors of earlier commands; the caller
// calls take_error() after the last piece.
CUresult post_piece(const CopyStream& where, wire::CopyShapeBody body,
                    SentCommand* sent = nullptr) {
  body.stream = where.route.id;
  pace(where.route);  // a copy may have more pieces than the queue has places
  return where.route.session->post(where.route, body, transport::Wake::kYes, sent);
}

CUresult post_shape(const CopyStream& where, wire::CopyShapeBody body) {
  body.stream = where.route.id;
  return post(where.route, body);
}

// A piece of the extent that fits into a staging slot: whole rows if possible.
struct Piece {
  size_t x, y, z;
  size_t width_bytes, rows;
};

template <typename Visit>
CUresult for_each_piece(const Extent& extent, const Visit& visit) {
  const size_t width = std::min(extent.width_bytes, Staging::kSlotBytes);
  const size_t rows = std::max<size_t>(1, Staging::kSlotBytes / width);
  for (size_t z = 0; z < extent.depth; ++z) {
    for (size_t y = 0; y < extent.height; y += rows) {
      for (size_t x = 0; x < extent.width_bytes; x += width) {
        const Piece piece{x, y, z, std::min(width, extent.width_bytes - x),
                          std::min(rows, extent.height - y)};
        RCUDA_RETURN_IF_CUDA_ERROR(visit(piece));
      }
    }
  }
  return CUDA_SUCCESS;
}

wire::CopyShapeSide shifted(wire::CopyShapeSide side, const Piece& piece) {
  side.x_bytes += piece.x;
  side.y += piece.y;
  side.z += piece.z;
  return side;
}

wire::CopyShapeSide staged(const Staging::Slot& slot, const Piece& piece) {
  wire::CopyShapeSide side{};
  side.address = slot.offset;
  side.pitch_bytes = piece.width_bytes;
  side.height = piece.rows;
  side.type = wire::MemoryType::kHost;
  return side;
}

void copy_rows(std::byte* packed, const wire::CopyShapeSide& side, const Piece& piece, bool pack) {
  for (size_t row = 0; row < piece.rows; ++row) {
    auto* address =
        reinterpret_cast<std::byte*>(row_address(side, piece.y + row, piece.z) + piece.x);
    std::byte* line = packed + row * piece.width_bytes;
    std::memcpy(pack ? line : address, pack ? address : line, piece.width_bytes);
  }
}

wire::CopyShapeBody whole_body(const ShapeSide& destination, const ShapeSide& source,
                               const Extent& extent) {
  wire::CopyShapeBody body{};
  body.destination = destination.wire;
  body.source = source.wire;
  body.width_bytes = extent.width_bytes;
  body.height = extent.height;
  body.depth = extent.depth;
  return body;
}

wire::CopyShapeBody piece_body(const Piece& piece, const Staging::Slot& slot) {
  wire::CopyShapeBody body{};
  body.width_bytes = piece.width_bytes;
  body.height = piece.rows;
  body.depth = 1;
  body.word = slot.word.index;
  body.sequence = slot.word.sequence;
  return body;
}

CUresult from_pageable(const CopyStream& where, const ShapeSide& destination,
                       const ShapeSide& source, const Extent& extent) {
  Staging& staging = where.route.session->staging();
  std::vector<std::byte> packed;  // used only if the medium cannot map the slots
  const CUresult result = for_each_piece(extent, [&](const Piece& piece) {
    Staging::Slot slot = staging.acquire(where.route.timeline);
    CUresult result = CUDA_SUCCESS;
    if (std::byte* memory = staging.memory(slot)) {
      copy_rows(memory, source.wire, piece, true);
    } else {
      packed.resize(piece.rows * piece.width_bytes);
      copy_rows(packed.data(), source.wire, piece, true);
      result = staging.fill(slot, packed.data(), packed.size());
    }
    if (result == CUDA_SUCCESS) {
      wire::CopyShapeBody body = piece_body(piece, slot);
      body.destination = shifted(destination.wire, piece);
      body.source = staged(slot, piece);
      body.source_staged = 1;
      result = post_piece(where, body);
    } else {
      --slot.word.sequence;
    }
    staging.release(slot);
    return result;
  });
  return result == CUDA_SUCCESS ? where.route.session->take_error() : result;
}

CUresult to_pageable(const CopyStream& where, const ShapeSide& destination, const ShapeSide& source,
                     const Extent& extent) {
  Session& session = *where.route.session;
  Staging& staging = session.staging();
  std::vector<std::byte> packed;
  Wait wait(where.route);
  wait.start();
  CUresult result = for_each_piece(extent, [&](const Piece& piece) {
    const Staging::Slot slot = staging.acquire(where.route.timeline);
    wire::CopyShapeBody body = piece_body(piece, slot);
    body.destination = staged(slot, piece);
    body.destination_staged = 1;
    body.source = shifted(source.wire, piece);
    SentCommand sent;
    const CUresult posted = post_piece(where, body, &sent);
    CUresult copied = session.wait_word(slot.word);
    if (copied == CUDA_SUCCESS) {
      std::byte* memory = staging.memory(slot);
      if (!memory) {
        packed.resize(piece.rows * piece.width_bytes);
        copied = staging.drain(slot, packed.data(), packed.size());
        memory = packed.data();
      }
      if (copied == CUDA_SUCCESS) copy_rows(memory, destination.wire, piece, false);
      if (where.route.timeline) where.route.timeline->waited(sent.position);
    }
    staging.release(slot);
    return posted != CUDA_SUCCESS ? posted : copied;
  });
  return result == CUDA_SUCCESS ? wait.finish() : result;
}

// Adds the copy to the graph that the stream captures, like capture_copy() in linear.cpp.
CUresult capture_shape(const CopyStream& where, ShapeSide destination, ShapeSide source,
                       const Extent& extent) {
  Session& session = *where.route.session;
  std::vector<uint64_t> callbacks;
  const auto replace = [&](ShapeSide& side, bool is_source) {
    if (side.home != Home::kPageable) return CUDA_SUCCESS;
    HostRows rows;
    rows.first = row_address(side.wire, 0, 0);
    rows.width_bytes = extent.width_bytes;
    rows.rows = extent.height;
    rows.slices = extent.depth;
    rows.pitch_bytes = side.wire.pitch_bytes;
    rows.slice_bytes = side.wire.pitch_bytes * side.wire.height;
    StandIn made;
    RCUDA_RETURN_IF_CUDA_ERROR(make_stand_in(session, where.route.context, rows, is_source, &made));
    callbacks.push_back(made.callback);
    side.wire.address += made.first - rows.first;
    return CUDA_SUCCESS;
  };
  CUresult result = replace(destination, false);
  if (result == CUDA_SUCCESS) result = replace(source, true);
  if (result == CUDA_SUCCESS) {
    wire::CopyShapeBody body = whole_body(destination, source, extent);
    body.stream = where.route.id;
    result = session.call(where.route, body);
  }
  if (result != CUDA_SUCCESS) {
    for (const uint64_t callback : callbacks) session.events().remove_callback(callback);
  }
  return result;
}

CUresult on_host(const ShapeSide& destination, const ShapeSide& source, const Extent& extent) {
  for (size_t z = 0; z < extent.depth; ++z) {
    for (size_t y = 0; y < extent.height; ++y) {
      std::memmove(reinterpret_cast<void*>(row_address(destination.wire, y, z)),
                   reinterpret_cast<const void*>(row_address(source.wire, y, z)),
                   extent.width_bytes);
    }
  }
  return CUDA_SUCCESS;
}

// ---- between servers ----------------------------------------------------------------------------

PeerSide peer_side(const ShapeSide& side) {
  return {*side.owner, row_address(side.wire, 0, 0), side.wire.pitch_bytes,
          side.wire.pitch_bytes * side.wire.height};
}

CUresult copy_linear_sides(const ShapeSide& destination, const ShapeSide& source,
                           const Extent& extent, CUstream stream, bool synchronous) {
  const CopyBetweenServers copy{
      peer_side(destination), peer_side(source), {extent.width_bytes, extent.height, extent.depth}};
  return issue_between_servers(copy, stream, synchronous);
}

// Device memory of the array's worker for a packed copy of the array's bytes: other workers cannot
// address the array.
class BesideArray {
 public:
  CUresult make(const Route& owner, const Extent& extent) {
    CUdeviceptr address = 0;
    const InContext scope(owner);
    RCUDA_RETURN_IF_CUDA_ERROR(
        forward_cuMemAlloc_v2(&address, extent.width_bytes * extent.height * extent.depth));
    side.home = Home::kDevice;
    side.owner.emplace(owner);
    side.wire.address = address;
    side.wire.pitch_bytes = extent.width_bytes;
    side.wire.height = extent.height;
    side.wire.type = wire::MemoryType::kDevice;
    return CUDA_SUCCESS;
  }
  ~BesideArray() {
    if (side.wire.address == 0) return;
    const InContext scope(*side.owner);
    (void)forward_cuMemFree_v2(side.wire.address);
  }

  ShapeSide side;
};

CUresult copy_on_worker(const ShapeSide& destination, const ShapeSide& source, const Extent& extent,
                        CUstream stream) {
  RCUDA_ASSIGN_OR_RETURN(const CopyStream& where, stream_at(source.owner, stream));
  wire::CopyShapeBody body = whole_body(destination, source, extent);
  RCUDA_RETURN_IF_CUDA_ERROR(post_shape(where, body));
  return synchronize(where.route);
}

// Makes a copy between servers if a side is an array. Waits for each step, even if the copy is
// asynchronous.
CUresult copy_arrays(const ShapeSide& destination, const ShapeSide& source, const Extent& extent,
                     CUstream stream) {
  if (may_capture(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const bool from_array = source.wire.type == wire::MemoryType::kArray;
  const bool to_array = destination.wire.type == wire::MemoryType::kArray;
  BesideArray before, after;
  CUresult result = CUDA_SUCCESS;
  if (from_array) {
    result = before.make(*source.owner, extent);
    if (result == CUDA_SUCCESS) result = copy_on_worker(before.side, source, extent, stream);
  }
  if (result == CUDA_SUCCESS && to_array) result = after.make(*destination.owner, extent);
  if (result == CUDA_SUCCESS) {
    result = copy_linear_sides(to_array ? after.side : destination,
                               from_array ? before.side : source, extent, stream, true);
  }
  if (result == CUDA_SUCCESS && to_array) {
    result = copy_on_worker(destination, after.side, extent, stream);
  }
  return result;
}

CUresult copy_on_servers(const ShapeSide& destination, const ShapeSide& source,
                         const Extent& extent, CUstream stream, bool synchronous) {
  const bool arrays = destination.wire.type == wire::MemoryType::kArray ||
                      source.wire.type == wire::MemoryType::kArray;
  return arrays ? copy_arrays(destination, source, extent, stream)
                : copy_linear_sides(destination, source, extent, stream, synchronous);
}

// Names the contexts of both sides, for a copy between contexts (LinearCopy::peer).
void name_contexts(ShapeSide* destination, ShapeSide* source) {
  if (destination->home != Home::kDevice || source->home != Home::kDevice) return;
  destination->wire.context = destination->owner->context;
  source->wire.context = source->owner->context;
}

// Makes a copy whose two sides have addresses in the worker.
CUresult copy_addressed(const ShapeSide& destination, const ShapeSide& source, const Extent& extent,
                        const CopyPlan& plan) {
  const StreamRoute& route = plan.stream->route;
  wire::CopyShapeBody body = whole_body(destination, source, extent);
  body.flags = plan.mirrored;
  if (plan.waits) {
    body.stream = route.id;
    return Wait(route).run(body);
  }
  const HostWrite writing(destination.home == Home::kDevice ? nullptr : route.timeline);
  // Except in a peer copy, the driver decides whether the stream may copy another device's memory.
  // The client waits for the answer, so that this call returns the driver's error.
  const auto foreign = [&](const ShapeSide& side) {
    return side.home == Home::kDevice && side.wire.context == 0 &&
           side.owner->device != route.device;
  };
  std::optional<CaptureAnswers> answers;
  if (foreign(destination) || foreign(source)) answers.emplace(true);
  return post_shape(*plan.stream, body);
}

}  // namespace

CUresult copy_shape(const CUDA_MEMCPY3D_PEER& shape, CUstream stream, bool synchronous) {
  RCUDA_RETURN_IF_CUDA_ERROR(check_copy(stream));
  const Extent extent{shape.WidthInBytes, shape.Height, shape.Depth};
  if (extent.width_bytes == 0 || extent.height == 0 || extent.depth == 0) return CUDA_SUCCESS;
  if (!is_real(extent)) return CUDA_ERROR_INVALID_VALUE;
  ShapeSide destination, source;
  destination.wire.pitch_bytes = shape.dstPitch;
  destination.wire.height = shape.dstHeight;
  destination.wire.x_bytes = shape.dstXInBytes;
  destination.wire.y = shape.dstY;
  destination.wire.z = shape.dstZ;
  destination.wire.lod = shape.dstLOD;
  source.wire.pitch_bytes = shape.srcPitch;
  source.wire.height = shape.srcHeight;
  source.wire.x_bytes = shape.srcXInBytes;
  source.wire.y = shape.srcY;
  source.wire.z = shape.srcZ;
  source.wire.lod = shape.srcLOD;
  RCUDA_RETURN_IF_CUDA_ERROR(describe(shape.dstMemoryType, shape.dstHost, shape.dstDevice,
                                      shape.dstArray, extent, &destination));
  RCUDA_RETURN_IF_CUDA_ERROR(describe(shape.srcMemoryType, shape.srcHost, shape.srcDevice,
                                      shape.srcArray, extent, &source));
  CopyPlan plan;
  RCUDA_RETURN_IF_CUDA_ERROR(prepare_copy(destination, source, stream, synchronous, false, &plan));
  const bool is_peer = shape.dstContext || shape.srcContext;
  if (is_peer && plan.way != CopyWay::kBetweenServers) name_contexts(&destination, &source);
  switch (plan.way) {
    case CopyWay::kBetweenServers:
      return copy_on_servers(destination, source, extent, stream, synchronous);
    case CopyWay::kCapturePageable:
      return capture_shape(*plan.stream, destination, source, extent);
    case CopyWay::kOnHost:
      return on_host(destination, source, extent);
    case CopyWay::kInWorker:
      return copy_addressed(destination, source, extent, plan);
    case CopyWay::kFromPageable: {
      const CUresult result = from_pageable(*plan.stream, destination, source, extent);
      return result == CUDA_SUCCESS && (plan.waits || (plan.mirrored && synchronous))
                 ? synchronize(plan.stream->route)
                 : result;
    }
    case CopyWay::kToPageable:
      return to_pageable(*plan.stream, destination, source, extent);
  }
  return CUDA_ERROR_UNKNOWN;
}

}  // namespace rcuda::client
