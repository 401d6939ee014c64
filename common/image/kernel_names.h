// The names of the kernels in a cubin or a PTX text.
//
// Of a PTX text only `.entry` declarations are read. The rest may be invalid; the driver checks it
// when it loads the text. Any thread; bounded reads; results own their strings. Errors:
// kInvalidArgument if the image is malformed, kUnsupported for containers, whose entries may be
// compressed.
#pragma once

#include <string>
#include <vector>

#include "common/image/image.h"

namespace rcuda::image {

// Returns the names in the order of the cubin's symbol table, or of the text.
Result<std::vector<std::string>> kernel_names(const Image& image);

}  // namespace rcuda::image
