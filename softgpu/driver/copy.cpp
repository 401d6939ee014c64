#include "softgpu/driver/copy.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "common/base/copy_once.h"
#include "common/base/cpu_pause.h"
#include "softgpu/driver/array.h"
#include "softgpu/driver/config.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/copy_log.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/memory.h"

namespace softgpu::driver {
namespace {

// One end of a copy, as described by the shape.
struct End {
  CUmemorytype type;
  size_t x_bytes, y, z;
  uint64_t address;  // in device or host memory
  CUarray array;
  size_t pitch_bytes, height;
};

// A pitch of 0 means rows without gaps, a height of 0 slices without gaps.
End source_of(const CUDA_MEMCPY3D_PEER& s) {
  const uint64_t address =
      s.srcMemoryType == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(s.srcHost) : s.srcDevice;
  return {s.srcMemoryType,
          s.srcXInBytes,
          s.srcY,
          s.srcZ,
          address,
          s.srcArray,
          s.srcPitch != 0 ? s.srcPitch : s.srcXInBytes + s.WidthInBytes,
          s.srcHeight != 0 ? s.srcHeight : s.srcY + s.Height};
}

End destination_of(const CUDA_MEMCPY3D_PEER& s) {
  const uint64_t address =
      s.dstMemoryType == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(s.dstHost) : s.dstDevice;
  return {s.dstMemoryType,
          s.dstXInBytes,
          s.dstY,
          s.dstZ,
          address,
          s.dstArray,
          s.dstPitch != 0 ? s.dstPitch : s.dstXInBytes + s.WidthInBytes,
          s.dstHeight != 0 ? s.dstHeight : s.dstY + s.Height};
}

// The place of the copied bytes: the first byte, the pitch of rows and of slices.
struct Layout {
  uint64_t first = 0;
  size_t pitch_bytes = 0, slice_bytes = 0;
};

// Larger than any memory. The limit keeps sums from overflowing.
constexpr size_t kMaxExtent = size_t{1} << 46;

CUresult layout_of(const End& end, size_t width, size_t height, size_t depth, Layout* layout) {
  if (end.x_bytes > kMaxExtent || end.y > kMaxExtent || end.z > kMaxExtent) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (end.type == CU_MEMORYTYPE_ARRAY) {
    std::shared_ptr<Array> array = array_from_handle(end.array);
    if (!array) return end.array ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    if (end.x_bytes + width > array->row_bytes() || end.y + height > array->rows() ||
        end.z + depth > array->slices()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    layout->pitch_bytes = array->pitch_bytes();
    layout->slice_bytes = array->slice_bytes();
    layout->first = array->memory;
  } else {
    const bool rows = height > 1 || depth > 1 || end.y > 0 || end.z > 0;
    if (rows && end.pitch_bytes < end.x_bytes + width) return CUDA_ERROR_INVALID_VALUE;
    const bool slices = depth > 1 || end.z > 0;
    if (slices && end.height < end.y + height) return CUDA_ERROR_INVALID_VALUE;
    if (end.address == 0) return CUDA_ERROR_INVALID_VALUE;
    layout->pitch_bytes = end.pitch_bytes;
    if (__builtin_mul_overflow(end.pitch_bytes, end.height, &layout->slice_bytes) && slices) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    layout->first = end.address;
  }
  size_t row_offset = 0, slice_offset = 0;
  if (__builtin_mul_overflow(end.y, layout->pitch_bytes, &row_offset) ||
      __builtin_mul_overflow(end.z, layout->slice_bytes, &slice_offset) ||
      row_offset > kMaxExtent || slice_offset > kMaxExtent) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  layout->first += slice_offset + row_offset + end.x_bytes;
  return CUDA_SUCCESS;
}

// Sets `*bytes` to the distance from the first byte of the copy to the end of its last byte. False
// on overflow.
bool span_of(const Layout& layout, size_t width, size_t height, size_t depth, size_t* bytes) {
  size_t rows = 0, slices = 0;
  if (__builtin_mul_overflow(height - 1, layout.pitch_bytes, &rows)) return false;
  if (__builtin_mul_overflow(depth - 1, layout.slice_bytes, &slices)) return false;
  if (rows > kMaxExtent || slices > kMaxExtent) return false;
  *bytes = rows + slices + width;
  return true;
}

CUresult resolve_end(const End& end, size_t width, size_t height, size_t depth,
                     CUmemorytype* type) {
  switch (end.type) {
    case CU_MEMORYTYPE_HOST:
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_ARRAY:
    case CU_MEMORYTYPE_UNIFIED:
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (end.pitch_bytes > kMaxExtent || end.height > kMaxExtent) return CUDA_ERROR_INVALID_VALUE;
  *type = end.type;
  Layout layout;
  if (CUresult result = layout_of(end, width, height, depth, &layout)) return result;
  if (end.type == CU_MEMORYTYPE_ARRAY || end.type == CU_MEMORYTYPE_HOST) return CUDA_SUCCESS;
  size_t bytes = 0;
  if (!span_of(layout, width, height, depth, &bytes)) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Allocation> allocation;
  const bool covered = memory_registry().covered(layout.first, bytes, &allocation);
  if (end.type == CU_MEMORYTYPE_UNIFIED && !allocation) {
    *type = CU_MEMORYTYPE_HOST;
    return CUDA_SUCCESS;
  }
  if (!covered) return CUDA_ERROR_INVALID_VALUE;
  // Memory of cuMemMap is inaccessible until cuMemSetAccess has named a device.
  if (allocation->kind == MemoryKind::kMapped && allocation->readable == 0 &&
      !allocation->on_host()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *type = end.type == CU_MEMORYTYPE_UNIFIED && allocation->on_host() &&
                  allocation->kind != MemoryKind::kManaged
              ? CU_MEMORYTYPE_HOST
              : CU_MEMORYTYPE_DEVICE;
  return CUDA_SUCCESS;
}

namespace {

// Up to this size, copies write each byte once, because programs may poll the bytes while they are
// copied (copy_once.h). Larger copies use memmove(), which is faster but may write a byte twice.
constexpr size_t kMostPolled = 64u << 10;

void copy_row(uint64_t to, uint64_t from, size_t bytes) {
  auto* const there = reinterpret_cast<std::byte*>(to);
  const auto* const here = reinterpret_cast<const std::byte*>(from);
  const bool overlap = to < from + bytes && from < to + bytes;
  if (bytes <= kMostPolled && !overlap) {
    rcuda::copy_once(there, here, bytes);
  } else {
    std::memmove(there, here, bytes);
  }
}

}  // namespace

void copy_rows(const Layout& to, const Layout& from, size_t width, size_t height, size_t depth) {
  // Contiguous on both sides: use fewer, longer rows.
  if (to.pitch_bytes == width && from.pitch_bytes == width && height > 1) {
    const size_t slice = width * height;
    if (depth > 1 && to.slice_bytes == slice && from.slice_bytes == slice) {
      width = slice * depth;
      depth = 1;
    } else {
      width = slice;
    }
    height = 1;
  }
  for (size_t z = 0; z < depth; ++z) {
    for (size_t y = 0; y < height; ++y) {
      copy_row(to.first + z * to.slice_bytes + y * to.pitch_bytes,
               from.first + z * from.slice_bytes + y * from.pitch_bytes, width);
    }
  }
}

// A sleep ends late by up to a timer slack, so the last part is spent spinning.
constexpr auto kTimerSlack = std::chrono::microseconds(80);

// While a copy waits for the end of its modelled transfer, it checks at this interval whether its
// context ends.
constexpr auto kStopLatency = std::chrono::milliseconds(20);

// Waits until `when`, the end of the modelled transfer. False if the context ends first.
bool wait_until(std::chrono::steady_clock::time_point when, const Context& context) {
  const auto coarse = when - kTimerSlack;
  const auto stopping = [&context] { return context.stopping().load(std::memory_order_relaxed); };
  for (auto now = std::chrono::steady_clock::now(); now < coarse && !stopping();
       now = std::chrono::steady_clock::now()) {
    std::this_thread::sleep_until(std::min(coarse, now + kStopLatency));
  }
  while (std::chrono::steady_clock::now() < when) {
    if (stopping()) return false;
    rcuda::cpu_pause();
  }
  return true;
}

// The device that holds the end's memory; nullptr for host memory.
Device* device_of(const End& end, const Layout& layout) {
  if (end.type == CU_MEMORYTYPE_ARRAY) {
    std::shared_ptr<Array> array = array_from_handle(end.array);
    return array ? &array->context->device() : nullptr;
  }
  if (end.type == CU_MEMORYTYPE_HOST) return nullptr;
  std::shared_ptr<Allocation> allocation = memory_registry().find(layout.first);
  return allocation ? allocation->device : nullptr;
}

CUresult hold_end(const End& end, const Layout& layout, std::shared_ptr<Allocation>* memory) {
  *memory = memory_registry().hold(layout.first);
  return *memory || end.type == CU_MEMORYTYPE_HOST ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

// False if some of the end's device memory no longer exists.
bool still_exists(const End& end, const Layout& layout, size_t width, size_t height, size_t depth) {
  size_t bytes = 0;
  return end.type == CU_MEMORYTYPE_HOST ||
         (span_of(layout, width, height, depth, &bytes) &&
          memory_registry().covered(layout.first, bytes, nullptr));
}

// The engine that a copy occupies under the link model; nullptr for a copy within one memory, and
// for a link that is not modelled.
CopyEngine* engine_for(Device* from, Device* to) {
  if (from == to) return nullptr;
  CopyEngine& engine = !from ? to->host_to_device()
                       : !to ? from->device_to_host()
                             : from->peer_out();
  return engine.paced() ? &engine : nullptr;
}

}  // namespace

CUDA_MEMCPY3D_PEER linear_copy(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
  CUDA_MEMCPY3D_PEER shape{};
  shape.srcMemoryType = shape.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  shape.srcDevice = source;
  shape.dstDevice = destination;
  shape.srcHost = reinterpret_cast<const void*>(source);
  shape.dstHost = reinterpret_cast<void*>(destination);
  shape.WidthInBytes = bytes;
  shape.Height = shape.Depth = 1;
  return shape;
}

CUresult resolve_copy(CUDA_MEMCPY3D_PEER* shape) {
  const size_t width = shape->WidthInBytes, height = shape->Height, depth = shape->Depth;
  if (width == 0 || height == 0 || depth == 0) return CUDA_SUCCESS;
  if (width > kMaxExtent || height > kMaxExtent || depth > kMaxExtent) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Linear memory has no levels; a level that is given for it is ignored, as by NVIDIA's driver.
  if ((shape->srcLOD != 0 && shape->srcMemoryType == CU_MEMORYTYPE_ARRAY) ||
      (shape->dstLOD != 0 && shape->dstMemoryType == CU_MEMORYTYPE_ARRAY)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const End source = source_of(*shape), destination = destination_of(*shape);
  CUmemorytype source_type{}, destination_type{};
  if (CUresult result = resolve_end(source, width, height, depth, &source_type)) return result;
  if (CUresult result = resolve_end(destination, width, height, depth, &destination_type)) {
    return result;
  }
  if (source_type == CU_MEMORYTYPE_HOST) {
    shape->srcHost = reinterpret_cast<const void*>(source.address);
  }
  if (destination_type == CU_MEMORYTYPE_HOST) {
    shape->dstHost = reinterpret_cast<void*>(destination.address);
  }
  shape->srcMemoryType = source_type;
  shape->dstMemoryType = destination_type;
  return CUDA_SUCCESS;
}

CUresult hold_memory(CopyOperation* operation) {
  const CUDA_MEMCPY3D_PEER& shape = operation->shape;
  const size_t width = shape.WidthInBytes, height = shape.Height, depth = shape.Depth;
  if (width == 0 || height == 0 || depth == 0) return CUDA_SUCCESS;
  const End source = source_of(shape), destination = destination_of(shape);
  Layout from, to;
  if (layout_of(source, width, height, depth, &from) != CUDA_SUCCESS ||
      layout_of(destination, width, height, depth, &to) != CUDA_SUCCESS) {
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  if (!operation->staged) {
    if (CUresult result = hold_end(source, from, &operation->source_memory)) return result;
  }
  return hold_end(destination, to, &operation->destination_memory);
}

CUresult hold_memory_to_queue(CopyOperation* operation) {
  if (CUresult result = hold_memory(operation)) return result;
  for (std::shared_ptr<Allocation>* memory :
       {&operation->source_memory, &operation->destination_memory}) {
    if (*memory && (*memory)->freeing) memory->reset();
  }
  return CUDA_SUCCESS;
}

bool uses_pageable_memory(const CopyOperation& copy) {
  const auto pageable = [](const End& end) {
    return end.type == CU_MEMORYTYPE_HOST && memory_registry().find(end.address) == nullptr;
  };
  return (!copy.staged && pageable(source_of(copy.shape))) || pageable(destination_of(copy.shape));
}

CUresult stage_source(CopyOperation* operation) {
  CUDA_MEMCPY3D_PEER& shape = operation->shape;
  const size_t width = shape.WidthInBytes, height = shape.Height, depth = shape.Depth;
  if (width == 0 || height == 0 || depth == 0) return CUDA_SUCCESS;
  Layout from;
  if (CUresult result = layout_of(source_of(shape), width, height, depth, &from)) return result;
  auto bytes = std::make_shared<std::vector<std::byte>>(width * height * depth);
  copy_rows({reinterpret_cast<uint64_t>(bytes->data()), width, width * height}, from, width, height,
            depth);
  shape.srcMemoryType = CU_MEMORYTYPE_HOST;
  shape.srcXInBytes = shape.srcY = shape.srcZ = 0;
  shape.srcPitch = width;
  shape.srcHeight = height;
  operation->staged = std::move(bytes);
  return CUDA_SUCCESS;
}

CUresult check_fill(const FillOperation& fill, const Device& by) {
  if (fill.element_bytes != 1 && fill.element_bytes != 2 && fill.element_bytes != 4) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (fill.width_elements == 0 || fill.height == 0) return CUDA_SUCCESS;
  size_t width = 0, rows = 0;
  if (__builtin_mul_overflow(fill.width_elements, size_t{fill.element_bytes}, &width) ||
      __builtin_mul_overflow(fill.height - 1, fill.pitch_bytes, &rows) || width > kMaxExtent ||
      rows > kMaxExtent) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (fill.destination % fill.element_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  if (fill.height > 1 && (fill.pitch_bytes < width || fill.pitch_bytes % fill.element_bytes != 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<Allocation> allocation;
  if (!memory_registry().covered(fill.destination, rows + width, &allocation)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool is_open = allocation->kind == MemoryKind::kGraph ||
                       (allocation->on_host() && allocation->kind != MemoryKind::kMapped);
  return is_open || allocation->writable_by(by) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult execute_copy(Context& context, const CopyOperation& operation) {
  const CUDA_MEMCPY3D_PEER& shape = operation.shape;
  const size_t width = shape.WidthInBytes, height = shape.Height, depth = shape.Depth;
  if (width == 0 || height == 0 || depth == 0) return CUDA_SUCCESS;
  End source = source_of(shape);
  const End destination = destination_of(shape);
  Layout from, to;
  if (operation.staged) source.address = reinterpret_cast<uint64_t>(operation.staged->data());
  // A queued copy holds its memory unless a free of the memory was already queued; a copy of a
  // graph holds no memory. Memory that is not held may no longer exist, or smaller memory may now
  // be at its address.
  CopyOperation held;
  const bool unheld = (!operation.source_memory && !operation.staged &&
                       shape.srcMemoryType != CU_MEMORYTYPE_HOST) ||
                      (!operation.destination_memory && shape.dstMemoryType != CU_MEMORYTYPE_HOST);
  if (unheld) {
    held.shape = shape;
    held.staged = operation.staged;
    if (CUresult result = hold_memory(&held)) return result;
  }
  if (layout_of(source, width, height, depth, &from) != CUDA_SUCCESS ||
      layout_of(destination, width, height, depth, &to) != CUDA_SUCCESS) {
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  if (unheld && (!still_exists(source, from, width, height, depth) ||
                 !still_exists(destination, to, width, height, depth))) {
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  CopyEngine* engine = nullptr;
  const Configuration& model = configuration();
  if (model.pcie_bytes_per_ns > 0 || model.pcie_latency_ns > 0 || model.peer_bytes_per_ns > 0) {
    engine = engine_for(device_of(source, from), device_of(destination, to));
  }
  if (!engine) {
    copy_rows(to, from, width, height, depth);
    return CUDA_SUCCESS;
  }
  const CopyEngine::Slot slot = engine->book(width * height * depth);
  copy_rows(to, from, width, height, depth);
  if (!wait_until(slot.done, context)) {
    engine->give_back(slot);
  } else if (copies_are_logged()) {
    const bool to_host = !device_of(destination, to), from_host = !device_of(source, from);
    log_copy(from_host ? "h2d"
             : to_host ? "d2h"
                       : "p2p",
             from_host ? to.first : from.first, width * height * depth, slot);
  }
  return CUDA_SUCCESS;
}

CUresult execute_fill(Context&, const FillOperation& operation) {
  if (operation.width_elements == 0 || operation.height == 0) return CUDA_SUCCESS;
  const std::shared_ptr<Allocation> memory = memory_registry().hold(operation.destination);
  const size_t span = (operation.height - 1) * operation.pitch_bytes +
                      operation.width_elements * operation.element_bytes;
  if (!memory || !memory_registry().covered(operation.destination, span, nullptr)) {
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  for (size_t y = 0; y < operation.height; ++y) {
    void* row = reinterpret_cast<void*>(operation.destination + y * operation.pitch_bytes);
    switch (operation.element_bytes) {
      case 1:
        std::memset(row, static_cast<int>(operation.value), operation.width_elements);
        break;
      case 2:
        std::fill_n(static_cast<uint16_t*>(row), operation.width_elements,
                    static_cast<uint16_t>(operation.value));
        break;
      default:
        std::fill_n(static_cast<uint32_t*>(row), operation.width_elements, operation.value);
        break;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver
