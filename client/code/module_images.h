// Loads modules and libraries: measures the image at the application's pointer and sends the
// command that loads it.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <cuda.h>

#include "client/code/functions.h"
#include "client/objects/code.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

// Reads a file. Returns CUDA_ERROR_FILE_NOT_FOUND if it cannot be opened, CUDA_ERROR_OUT_OF_MEMORY
// for a folder (both as driver 580).
CUresult read_file(const char* path, std::vector<char>* contents);
// Finds the extent of the image at `pointer` and hashes its parts. *image refers to the memory at
// `pointer`. `bytes`: the exact size, for the contents of a file. Returns CUDA_ERROR_INVALID_IMAGE
// if the format is not known.
CUresult measure_image(const void* pointer, std::optional<size_t> bytes, ImageParts* image);
// Loads the image by kModuleLoad or kLibraryLoad, and sends the parts that the worker lacks
// (call_with_images()). Fills the log buffers of the options. Blocks for a round trip if the worker
// has the image. `functions`: gets the functions of the image if they are few, from queries in the
// same round trip; may be null.
CUresult load_image(Session& session, wire::ObjectId context, wire::Custom opcode,
                    wire::ObjectId id, const ImageParts& image, JitOptions& options,
                    LoadedFunctions* functions);

}  // namespace rcuda::client
