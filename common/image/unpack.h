// Decompresses fatbin entries and chooses among them, for components that execute images.
//
// A separate target (zstd, lz4), so that the preloaded client library does not contain them. Any
// thread. Sizes from headers are compared with what the payload can hold before memory is
// allocated. Errors: kInvalidArgument for damaged data, kNotFound if nothing fits the device
// (CUDA_ERROR_NO_BINARY_FOR_GPU), kUnsupported for an unknown encoding, kOutOfMemory.
#pragma once

#include <string>

#include "common/image/fatbin.h"

namespace rcuda::image {

// The payload before nvcc compressed it. PTX is returned without its padding.
Result<std::string> decompress(const Entry& entry);

// The best PTX for a device of compute capability `sm` (90): the newest that is not above it. An
// architecture-specific one must match exactly, and a family-specific one must have the same major
// version. If none fits, the oldest of the others. nullptr without PTX.
const Entry* select_ptx(const std::vector<Entry>& entries, uint32_t sm);

// The PTX texts to link into one program: one text, or one per translation unit of a version 2
// wrapper. An ELF image has none.
Result<std::vector<std::string>> ptx_units(const Image& image, uint32_t sm);

}  // namespace rcuda::image
