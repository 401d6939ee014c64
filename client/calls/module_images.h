// Loading modules and libraries: what the application's pointer holds, and the command that loads
// it.
#pragma once

#include <cstddef>
#include <optional>

#include <cuda.h>

#include "client/objects/code.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

// What the application's pointer holds, or a file's contents, of which there are just so many
// `bytes`. CUDA_ERROR_INVALID_IMAGE when it is nothing known.
CUresult measure_image(const void* pointer, std::optional<size_t> bytes, ImageParts* image);
// kModuleLoad or kLibraryLoad of an image that is sent first; fills the options' log buffers.
// Blocks for a round trip at least.
CUresult load_image(Session& session, wire::ObjectId context, wire::Custom opcode,
                    wire::ObjectId id, const ImageParts& image, const JitOptions& options);

}  // namespace rcuda::client
