// Kernels of an ELF cubin and the layout of their parameters, read on the client.
//
// cuLaunchKernel gives pointers to parameters without their sizes; `.nv.info.<kernel>` sections
// hold them, so a launch can be packed without asking the server. Any thread; bounded reads;
// results own their strings. Errors: kInvalidArgument when the image or an attribute list is
// malformed.
#pragma once

#include <string>

#include "common/image/image.h"

namespace rcuda::image {

struct KernelParameter {
  uint32_t offset_bytes = 0;
  uint32_t size_bytes = 0;
};

struct CubinKernel {
  std::string name;
  std::vector<KernelParameter> parameters;  // by ordinal
  uint32_t parameter_bytes = 0;
};

// In the order of the symbol table.
Result<std::vector<CubinKernel>> cubin_kernels(Bytes image);

}  // namespace rcuda::image
