// Kernels of a PTX text and the layout of their parameters.
//
// Only `.entry` declarations are read. The rest of the text may be invalid; the driver checks it
// when it loads the text. Any thread; bounded reads; results own their strings. Errors:
// kInvalidArgument if a declaration cannot be understood.
#pragma once

#include <string_view>

#include "common/image/kernel_layout.h"

namespace rcuda::image {

// In the order of the text.
Result<std::vector<KernelLayout>> ptx_kernels(std::string_view text);

}  // namespace rcuda::image
