// Loading modules and libraries: what the application's pointer holds, and the command that loads
// it.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <cuda.h>

#include "client/objects/code.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

// The contents of a file. CUDA_ERROR_FILE_NOT_FOUND if it cannot be read.
CUresult read_file(const char* path, std::vector<char>* contents);
// What the application's pointer holds, or a file's contents, of which there are just so many
// `bytes`. CUDA_ERROR_INVALID_IMAGE when it is nothing known.
CUresult measure_image(const void* pointer, std::optional<size_t> bytes, ImageParts* image);
// kModuleLoad or kLibraryLoad of an image that is sent first; fills the options' log buffers.
// Blocks for a round trip at least.
CUresult load_image(Session& session, wire::ObjectId context, wire::Custom opcode,
                    wire::ObjectId id, const ImageParts& image, JitOptions& options);

}  // namespace rcuda::client
