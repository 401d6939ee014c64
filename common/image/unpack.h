// Decompressing fatbin entries and choosing among them, for whoever executes images.
//
// A target of its own (zstd, lz4), so that the preloaded client library does not carry them.
// Any thread. The sizes that headers claim are checked against what the payload can hold before
// memory is taken. Errors: kInvalidArgument for damaged data, kNotFound when nothing fits the
// device (CUDA_ERROR_NO_BINARY_FOR_GPU), kUnsupported for data of an unknown encoding,
// kOutOfMemory.
#pragma once

#include <string>

#include "common/image/fatbin.h"

namespace rcuda::image {

// The payload as it was before nvcc compressed it. PTX loses its padding.
Result<std::string> decompress(const Entry& entry);

// The best PTX for a device of compute capability `sm` (90): the newest that is not above it, where
// an architecture-specific one must match exactly and a family-specific one must be of the same
// major version. If there is none, any other PTX: the oldest. nullptr without PTX.
const Entry* select_ptx(const std::vector<Entry>& entries, uint32_t sm);

// The PTX texts to be linked into one program: one, or one per translation unit of a version 2
// wrapper. An ELF image has none.
Result<std::vector<std::string>> ptx_units(const Image& image, uint32_t sm);

}  // namespace rcuda::image
