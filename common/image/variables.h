// The device memory that the variables of an image take when it is loaded.
//
// Needs the decompressors of unpack.h. Any thread; bounded reads. Errors: those of unpack.h, and
// kInvalidArgument for a damaged image.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/image/image.h"

namespace rcuda::image {

// Returns at least the bytes that a device of compute capability `sm` (90) needs, whichever code
// the driver chooses. Code for the linker (LTO) is not counted. UINT64_MAX if a PTX text gives the
// size of a variable in an unknown form.
Result<uint64_t> variable_bytes(const Image& image, uint32_t sm);
uint64_t ptx_variable_bytes(std::string_view text);

}  // namespace rcuda::image
