// The kernels of a module's image and how their parameters lie in memory.
//
// cuLaunchKernel gets pointers to parameters without their sizes. A driver of CUDA 12.4 and later
// tells them (cuFuncGetParamInfo); for an older one the image itself has to. cubin.h and
// ptx_kernels.h read one image; kernel_layouts() below takes whatever a module is loaded from. Any
// thread; nothing blocks or is kept; results own their strings.
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

// Each kernel once. Of a container, what a device of compute capability `sm` (90) would run is
// read, and other entries only where that cannot be: one source has one layout for all
// architectures. Kernels of an image in an unknown form are missing. (Part of rcuda_image_unpack:
// containers are compressed.)
std::vector<KernelLayout> kernel_layouts(const Image& image, uint32_t sm);

}  // namespace rcuda::image
