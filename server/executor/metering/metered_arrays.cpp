// Entries of a metered table for arrays. The driver does not tell their sizes: they count by their
// elements.
#include <algorithm>
#include <cstdint>

#include "common/cuda/batch_shape.h"
#include "server/executor/metering/meters.h"

namespace rcuda::server {
namespace {

// An element of a format with an unknown size, such as compressed and planar ones.
constexpr uint64_t kLargestElement = 16;

// Of one level of a mipmapped array.
uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned level) {
  if (array.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) return 0;  // is mapped
  const auto extent = [&](size_t size) { return std::max<uint64_t>(size >> level, 1); };
  const uint64_t channel = cuda::format_bytes(array.Format);
  uint64_t bytes = channel ? channel * std::max(array.NumChannels, 1u) : kLargestElement;
  const uint64_t depth = array.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)
                             ? std::max<uint64_t>(array.Depth, 1)
                             : extent(array.Depth);
  if (__builtin_mul_overflow(bytes, extent(array.Width), &bytes) ||
      __builtin_mul_overflow(bytes, extent(array.Height), &bytes) ||
      __builtin_mul_overflow(bytes, depth, &bytes)) {
    return UINT64_MAX;
  }
  return bytes;
}

CUresult create(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* given) {
  const CUDA_ARRAY3D_DESCRIPTOR full{given->Width, given->Height, 0, given->Format,
                                     given->NumChannels};
  return make_booked(meters().arrays, held_by(level_bytes(full, 0)), array,
                     [&] { return meters().driver.cuArrayCreate_v2(array, given); });
}

CUresult create_3d(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* given) {
  return make_booked(meters().arrays, held_by(level_bytes(*given, 0)), array,
                     [&] { return meters().driver.cuArray3DCreate_v2(array, given); });
}

CUresult create_mipmapped(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* given,
                          unsigned levels) {
  uint64_t bytes = 0;
  for (unsigned level = 0; level < std::min(levels, 63u); ++level) {
    const uint64_t more = level_bytes(*given, level);
    if (__builtin_add_overflow(bytes, more, &bytes)) bytes = UINT64_MAX;
  }
  return make_booked(meters().arrays, held_by(bytes), array,
                     [&] { return meters().driver.cuMipmappedArrayCreate(array, given, levels); });
}

CUresult destroy(CUarray array) {
  return end_booked(meters().arrays, array, [&] { return meters().driver.cuArrayDestroy(array); });
}

CUresult destroy_mipmapped(CUmipmappedArray array) {
  return end_booked(meters().arrays, array,
                    [&] { return meters().driver.cuMipmappedArrayDestroy(array); });
}

}  // namespace

void meter_arrays(api::DriverTable* table) {
  replace_entry(table->cuArrayCreate_v2, &create);
  replace_entry(table->cuArray3DCreate_v2, &create_3d);
  replace_entry(table->cuMipmappedArrayCreate, &create_mipmapped);
  replace_entry(table->cuArrayDestroy, &destroy);
  replace_entry(table->cuMipmappedArrayDestroy, &destroy_mipmapped);
}

}  // namespace rcuda::server
