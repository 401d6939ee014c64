// The kernels of a module's image and the layout of their parameters.
//
// cuLaunchKernel gets pointers to parameters without their sizes. A driver of CUDA 12.4 or later
// knows the sizes (cuFuncGetParamInfo); with an older driver they must come from the image. cubin.h
// and ptx_kernels.h each read one format; kernel_layouts() reads any image that a module is loaded
// from. Any thread; nothing blocks; results own their strings.
#pragma once

#include <string>

#include "common/image/image.h"

namespace rcuda::image {

struct KernelParameter {
  uint32_t offset_bytes = 0;
  uint32_t size_bytes = 0;
};

struct KernelLayout {
  std::string name;
  std::vector<KernelParameter> parameters;  // by ordinal
  uint32_t parameter_bytes = 0;
};

// Returns each kernel once. In a container, reads the entries that a device of compute capability
// `sm` (90) would run. If these cannot be read, reads the others, because one source has the same
// layout for all architectures. Kernels of an image in an unknown format are missing. (In
// rcuda_image_unpack, because containers are compressed.)
std::vector<KernelLayout> kernel_layouts(const Image& image, uint32_t sm);

}  // namespace rcuda::image
