// Kernels of an ELF cubin and the layout of their parameters, from its `.nv.info.<kernel>`
// sections.
//
// Any thread; bounded reads; results own their strings. Errors: kInvalidArgument if the image or an
// attribute list is malformed.
#pragma once

#include "common/image/kernel_layout.h"

namespace rcuda::image {

// In the order of the symbol table.
Result<std::vector<KernelLayout>> cubin_kernels(Bytes image);

}  // namespace rcuda::image
