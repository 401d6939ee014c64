// The image fuzzer's work on one input. common_image_test runs it over fixed mutations, too. Calls
// every function that gets an image from a client or a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/image/kernel_names.h"
#include "common/image/unpack.h"
#include "softgpu/driver/link.h"

namespace rcuda::image {

inline void fuzz_image(const uint8_t* data, size_t size) {
  const Bytes bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto image = inspect(bytes);
  if (!image.ok()) return;
  for (const Bytes part : image->parts) {
    if (part.data() != bytes.data() || part.size() > bytes.size()) std::abort();
  }
  (void)ptx_units(*image, 90);
  (void)kernel_names(*image);
  if (image->format == Format::kElf) {
    std::vector<std::string> units;
    (void)softgpu::driver::linked_units(image->parts[0], &units);
    for (const std::string& unit : units) {
      if (unit.size() > size) std::abort();
    }
  }
  if (image->format != Format::kFatbin) return;
  const auto list = entries(image->parts[0]);
  if (!list.ok()) return;
  for (const Entry& entry : *list) {
    const auto content = decompress(entry);
    if (!content.ok()) continue;
    if (content->size() > entry.size_bytes) std::abort();
    const Bytes inner(reinterpret_cast<const std::byte*>(content->data()), content->size());
    if (const auto part = inspect(inner); part.ok()) (void)kernel_names(*part);
  }
}

}  // namespace rcuda::image
