#include "p2p/staging/shape.h"

#include <algorithm>

namespace rcuda::p2p {
namespace {

// Computes a * b + c. Returns false on overflow.
bool multiply_add(uint64_t a, uint64_t b, uint64_t c, uint64_t& result) {
  uint64_t product = 0;
  return !__builtin_mul_overflow(a, b, &product) && !__builtin_add_overflow(product, c, &result);
}

}  // namespace

bool Shape::contiguous() const {
  if (bytes() == 0) return true;
  const bool rows = height == 1 || pitch_bytes == width_bytes;
  const bool slices = depth == 1 || slice_bytes == width_bytes * height;
  return rows && slices;
}

uint64_t Shape::extent_bytes() const {
  if (bytes() == 0) return 0;
  return (depth - 1) * slice_bytes + (height - 1) * pitch_bytes + width_bytes;
}

Status Shape::check() const {
  uint64_t extent = 0;
  uint64_t packed = 0;
  bool good =
      multiply_add(width_bytes, height, 0, packed) && multiply_add(packed, depth, 0, packed);
  if (good && packed > 0) {
    if (height > 1)
      good = pitch_bytes >= width_bytes && multiply_add(pitch_bytes, height - 1, 0, extent);
    good = good && !__builtin_add_overflow(extent, width_bytes, &extent);
    if (good && depth > 1) {
      good = slice_bytes >= extent && multiply_add(slice_bytes, depth - 1, extent, extent);
    }
    uint64_t end = 0;
    good = good && !__builtin_add_overflow(address, extent, &end);
  }
  if (good) return {};
  return {Code::kInvalidArgument,
          "the shape of a peer copy is invalid (" + std::to_string(depth) + " slices of " +
              std::to_string(height) + " rows of " + std::to_string(width_bytes) +
              " bytes): its row pitch of " + std::to_string(pitch_bytes) + " or slice pitch of " +
              std::to_string(slice_bytes) + " bytes is too small, or its size overflows"};
}

Boxes boxes_of(const Shape& shape, uint64_t begin, uint64_t bytes, uint64_t packed,
               Direction direction) {
  Boxes result;
  const uint64_t slice_packed = shape.width_bytes * shape.height;
  const bool single = shape.contiguous();
  for (uint64_t done = 0; done < bytes;) {
    // The next byte to copy: byte `x` of row `row` of slice `slice`.
    const uint64_t at = begin + done, left = bytes - done;
    const uint64_t slice = at / slice_packed;
    const uint64_t row = at % slice_packed / shape.width_bytes;
    const uint64_t x = at % shape.width_bytes;
    CopyBox box;
    box.width_bytes = shape.width_bytes;
    if (single) {
      box.width_bytes = bytes;
    } else if (x > 0 || left < shape.width_bytes) {
      box.width_bytes = std::min(shape.width_bytes - x, left);
    } else if (row > 0 || left < slice_packed) {
      box.rows = std::min(shape.height - row, left / shape.width_bytes);
    } else {
      box.rows = shape.height;
      box.slices = left / slice_packed;
    }
    const uint64_t address =
        shape.address + (single ? at : slice * shape.slice_bytes + row * shape.pitch_bytes + x);
    const bool pack = direction == Direction::kPack;
    (pack ? box.source : box.destination) = address;
    (pack ? box.source_pitch : box.destination_pitch) = shape.pitch_bytes;
    (pack ? box.source_slice : box.destination_slice) = shape.slice_bytes;
    (pack ? box.destination : box.source) = packed + done;
    (pack ? box.destination_pitch : box.source_pitch) = box.width_bytes;
    (pack ? box.destination_slice : box.source_slice) = box.width_bytes * box.rows;
    result.box.at(result.count++) = box;
    done += box.width_bytes * box.rows * box.slices;
  }
  return result;
}

CopyBox box_between(const Shape& destination, const Shape& source) {
  CopyBox box;
  box.destination = destination.address;
  box.source = source.address;
  if (destination.contiguous() && source.contiguous()) {
    box.width_bytes = destination.bytes();
    return box;
  }
  box.width_bytes = destination.width_bytes;
  box.rows = destination.height;
  box.slices = destination.depth;
  box.destination_pitch = destination.pitch_bytes;
  box.destination_slice = destination.slice_bytes;
  box.source_pitch = source.pitch_bytes;
  box.source_slice = source.slice_bytes;
  return box;
}

}  // namespace rcuda::p2p
