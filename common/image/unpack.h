// Decompresses fatbin entries and chooses among them, for softgpu and the worker.
//
// A separate target (zstd, lz4), so that the preloaded client library does not contain them. Any
// thread. Before memory is allocated, sizes from headers are checked against the most that the
// payload can decompress to. Errors: kInvalidArgument for damaged data, kNotFound if an image has
// no PTX (CUDA_ERROR_NO_BINARY_FOR_GPU), kOutOfMemory.
#pragma once

#include <string>

#include "common/image/fatbin.h"

namespace rcuda::image {

// Returns the payload as it was before nvcc compressed it. PTX is returned without its padding.
Result<std::string> decompress(const Entry& entry);

// Returns the best PTX for a device of compute capability `sm` (90): the newest PTX that is not
// newer than `sm`. Architecture-specific PTX must match exactly, family-specific PTX must have the
// same major version. If no PTX fits, returns the oldest. nullptr without PTX.
const Entry* select_ptx(const std::vector<Entry>& entries, uint32_t sm);

// Returns the PTX texts to link into one program: one text, or one text per translation unit of a
// version 2 wrapper. An ELF image has no PTX.
Result<std::vector<std::string>> ptx_units(const Image& image, uint32_t sm);

}  // namespace rcuda::image
