// Shape: the memory of one half of a copy, a box of bytes with pitches. Its packed bytes are its
// rows, one after the other, without the padding between them. boxes_of() gives the boxes that hold
// a range of the packed bytes. Both ends have the same packed bytes, each with its own pitches, so
// chunks of 2D and 3D copies travel as plain bytes. Pure values; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/status.h"
#include "p2p/api/device_ops.h"

namespace rcuda::p2p {

struct Shape {
  DeviceAddress address = 0;
  uint64_t width_bytes = 0;
  uint64_t height = 1;
  uint64_t depth = 1;
  uint64_t pitch_bytes = 0;  // from row to row; ignored for one row
  uint64_t slice_bytes = 0;  // from slice to slice; ignored for one slice

  static Shape plain(DeviceAddress address, uint64_t bytes) { return {address, bytes}; }

  uint64_t bytes() const { return width_bytes * height * depth; }
  bool contiguous() const;
  // Returns the distance from the first byte to the end of the last byte. Only for a shape that
  // passed check().
  uint64_t extent_bytes() const;
  // Whether the shape, from its first to its last byte, overlaps [base, base + bytes). Only for a
  // shape that passed check().
  bool overlaps(DeviceAddress base, uint64_t bytes) const {
    return address < base + bytes && base < address + extent_bytes();
  }
  // Checks that the pitches hold the rows and nothing overflows. Call it before any other function.
  Status check() const;
};

// The boxes of a packed range, at most five: the rest of a row, the remaining rows of a slice,
// whole slices, whole rows, part of a row.
struct Boxes {
  static constexpr size_t kMax = 5;
  std::array<CopyBox, kMax> box;
  size_t count = 0;
  std::span<const CopyBox> span() const { return {box.data(), count}; }
};

enum class Direction : bool { kPack, kUnpack };

// Returns the boxes that copy packed bytes [begin, begin + bytes) of `shape` to (kPack) or from
// (kUnpack) the contiguous memory at `packed`. The range lies within the shape.
Boxes boxes_of(const Shape& shape, uint64_t begin, uint64_t bytes, uint64_t packed,
               Direction direction);
// Returns the box that copies `source` to `destination`. The shapes are both contiguous and of
// equal size, or have equal width, height and depth.
CopyBox box_between(const Shape& destination, const Shape& source);

}  // namespace rcuda::p2p
