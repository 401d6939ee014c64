// cuLink*: joining PTX into one image that can be loaded.
//
// Linking proper happens when a program is loaded; cuLinkComplete only packs its inputs. The
// product is an ELF image (machine EM_CUDA, as cubins are) with a section per PTX unit, so that
// everything that takes a cubin by address and measures it takes this too. Pure functions; any
// thread.
#pragma once

#include <string>
#include <vector>

#include "common/image/image.h"

namespace softgpu::driver {

std::vector<std::byte> link_image(const std::vector<std::string>& units);
// The units of an image made by link_image(); false when the image is something else.
bool linked_units(rcuda::image::Bytes image, std::vector<std::string>* units);

}  // namespace softgpu::driver
