// Shape: the device side of a copy, a box of bytes with pitches, and how a range of its packed
// bytes (rows back to back) maps to boxes. Sender and receiver cut the same packed stream, each
// with pitches of its own, so 2D and 3D copies travel as plain bytes. Pure values; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/status.h"
#include "p2p/device_ops.h"

namespace rcuda::p2p {

struct Shape {
  DeviceAddress address = 0;
  uint64_t width_bytes = 0;
  uint64_t height = 1;
  uint64_t depth = 1;
  uint64_t pitch_bytes = 0;  // row to row; means nothing for one row
  uint64_t slice_bytes = 0;  // slice to slice; means nothing for one slice

  static Shape plain(DeviceAddress address, uint64_t bytes) { return {address, bytes}; }

  uint64_t bytes() const { return width_bytes * height * depth; }
  bool contiguous() const;
  // From the first byte to behind the last, of a shape that was checked.
  uint64_t extent_bytes() const;
  // Whether pitches hold the rows and nothing overflows: call before anything else, once.
  Status check() const;
};

// Boxes of a packed range: what is left of a row, of a slice, whole slices, rows, part of a row.
struct Boxes {
  static constexpr size_t kMax = 5;
  std::array<CopyBox, kMax> box;
  size_t count = 0;
  std::span<const CopyBox> span() const { return {box.data(), count}; }
};

enum class Direction : bool { kPack, kUnpack };

// Boxes that copy packed bytes [begin, begin + bytes) of `shape` to (kPack) or from (kUnpack) the
// plain memory at `packed`. The range lies within the shape.
Boxes boxes_of(const Shape& shape, uint64_t begin, uint64_t bytes, uint64_t packed,
               Direction direction);
// The one box that copies `source` to `destination`, shapes of equal width, height and depth.
CopyBox box_between(const Shape& destination, const Shape& source);

}  // namespace rcuda::p2p
