// The linear memory that one side of a 3D copy touches. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include <cuda.h>

#include "common/wire/protocol.h"

namespace rcuda::server {

struct CopyExtent {
  uint64_t width_bytes = 0, height = 0, depth = 0;

  bool empty() const { return width_bytes == 0 || height == 0 || depth == 0; }
  // 0 if the number overflows. No driver accepts such a copy.
  uint64_t volume() const {
    uint64_t bytes = 0;
    const bool overflows = __builtin_mul_overflow(width_bytes, height, &bytes) ||
                           __builtin_mul_overflow(bytes, depth, &bytes);
    return overflows ? 0 : bytes;
  }
};

struct CopyRange {
  uint64_t first = 0, bytes = 0;
};

struct CopySide {
  CUmemorytype type = CU_MEMORYTYPE_DEVICE;  // for arrays, the other fields have no meaning
  uint64_t base = 0, pitch_bytes = 0, height = 0;
  uint64_t x_bytes = 0, y = 0, z = 0;

  // Returns the address of row number `of_slice` in slice number `slice` of the copy. The sum may
  // overflow if range_of() returns nullopt.
  uint64_t row(uint64_t of_slice, uint64_t slice) const {
    return base + ((z + slice) * height + y + of_slice) * pitch_bytes + x_bytes;
  }
};

inline CopyExtent extent_of(const wire::CopyShapeBody& body) {
  return {body.width_bytes, body.height, body.depth};
}
inline CopyExtent extent_of(const CUDA_MEMCPY3D& copy) {
  return {copy.WidthInBytes, copy.Height, copy.Depth};
}

inline CopySide side_of(const wire::CopyShapeSide& side) {
  const CUmemorytype type = side.type == wire::MemoryType::kArray     ? CU_MEMORYTYPE_ARRAY
                            : side.type == wire::MemoryType::kHost    ? CU_MEMORYTYPE_HOST
                            : side.type == wire::MemoryType::kUnified ? CU_MEMORYTYPE_UNIFIED
                                                                      : CU_MEMORYTYPE_DEVICE;
  return {type, side.address, side.pitch_bytes, side.height, side.x_bytes, side.y, side.z};
}

// A pitch or height of 0 stands for packed rows or slices.
inline CopySide source_of(const CUDA_MEMCPY3D& copy) {
  return {copy.srcMemoryType,
          copy.srcMemoryType == CU_MEMORYTYPE_HOST ? reinterpret_cast<uintptr_t>(copy.srcHost)
                                                   : copy.srcDevice,
          copy.srcPitch ? copy.srcPitch : copy.srcXInBytes + copy.WidthInBytes,
          copy.srcHeight ? copy.srcHeight : copy.srcY + copy.Height,
          copy.srcXInBytes,
          copy.srcY,
          copy.srcZ};
}
inline CopySide destination_of(const CUDA_MEMCPY3D& copy) {
  return {copy.dstMemoryType,
          copy.dstMemoryType == CU_MEMORYTYPE_HOST ? reinterpret_cast<uintptr_t>(copy.dstHost)
                                                   : copy.dstDevice,
          copy.dstPitch ? copy.dstPitch : copy.dstXInBytes + copy.WidthInBytes,
          copy.dstHeight ? copy.dstHeight : copy.dstY + copy.Height,
          copy.dstXInBytes,
          copy.dstY,
          copy.dstZ};
}

// Returns the range from the first to the last byte that the copy touches; nullopt if the numbers
// overflow or are incomplete. The range of an empty copy has 0 bytes and begins at the base.
inline std::optional<CopyRange> range_of(const CopySide& side, const CopyExtent& extent) {
  if (extent.empty()) return CopyRange{side.base, 0};
  if (side.pitch_bytes == 0 || side.height == 0) return std::nullopt;
  // Products of three numbers up to this limit fit into 128 bits. No real copy has larger numbers.
  constexpr uint64_t kLimit = 1ull << 40;
  for (const uint64_t number : {side.pitch_bytes, side.height, side.x_bytes, side.y, side.z,
                                extent.width_bytes, extent.height, extent.depth}) {
    if (number > kLimit) return std::nullopt;
  }
  using Wide = unsigned __int128;
  const Wide first_row = Wide{side.z} * side.height + side.y;
  const Wide last_row = Wide{side.z + extent.depth - 1} * side.height + side.y + extent.height - 1;
  const Wide first = side.base + first_row * side.pitch_bytes + side.x_bytes;
  const Wide end = side.base + last_row * side.pitch_bytes + side.x_bytes + extent.width_bytes;
  if (end > ~uint64_t{0}) return std::nullopt;
  return CopyRange{static_cast<uint64_t>(first), static_cast<uint64_t>(end - first)};
}

}  // namespace rcuda::server
