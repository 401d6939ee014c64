// cuLink*: joins PTX into one image that can be loaded.
//
// The image contains the inputs unlinked. cuLinkComplete links them only to report errors; the
// program is linked when the image is loaded. The image is an ELF file (machine EM_CUDA, like a
// cubin) with a section per PTX unit. Code that determines the size of a cubin from its address
// therefore also accepts this image. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "common/image/image.h"

namespace softgpu::driver {

std::vector<std::byte> link_image(const std::vector<std::string>& units);
// The units of an image made by link_image(); false for any other image.
bool linked_units(rcuda::image::Bytes image, std::vector<std::string>* units);

}  // namespace softgpu::driver
