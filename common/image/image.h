// The image that an application passes to cuModuleLoadData or cuLibraryLoadData: a pointer without
// a length.
//
// measure() reads the format and the length from the headers, so that the client library can send
// the image. measure() needs no decompressor and allocates little. inspect() does the same for
// bytes of known length, from a file or another process. These bytes are not trusted: inspect()
// reads nothing outside them. Any thread; nothing blocks; results point into the caller's memory.
// Errors: kInvalidArgument (CUDA_ERROR_INVALID_IMAGE) if the format is unknown or the headers
// contradict themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"

namespace rcuda::image {

using Bytes = std::span<const std::byte>;

constexpr uint32_t kWrapperMagic = 0x466243B1;
constexpr uint32_t kContainerMagic = 0xBA55ED50;

// The structure in .nvFatBinSegment. In version 1, `prelinked` is NULL. Version 2 belongs to
// -rdc=true programs. Its `data` is the container that nvlink, the device linker, has made (SASS
// only). Its `prelinked` is a NULL-terminated array of the containers of the translation units; a
// constructor fills the array at start-up.
struct FatbinWrapper {
  uint32_t magic;
  uint32_t version;
  const void* data;
  const void* const* prelinked;
};
static_assert(sizeof(FatbinWrapper) == 24);

enum class Format : uint8_t { kFatbin, kElf, kText };

struct Image {
  Format format = Format::kText;
  // One part; or, for a version 2 wrapper, `data` and then the prelinked containers. A text has no
  // NUL.
  std::vector<Bytes> parts;
};

// The memory at `pointer` belongs to the application and must be as long as its headers say.
Result<Image> measure(const void* pointer);

// Accepts a bare container, ELF image or text that starts at bytes[0]. Refuses a wrapper, because
// its pointers are valid only in the process that made them.
Result<Image> inspect(Bytes bytes);

}  // namespace rcuda::image
