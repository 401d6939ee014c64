// What an application hands to cuModuleLoadData or cuLibraryLoadData: a pointer without a length.
//
// measure() finds out what it points to and how long that is, from the headers alone, so that the
// client library can send it; it needs no decompressor and allocates little. inspect() does the
// same for bytes whose number is known, of a file or from another process, which are not trusted:
// nothing outside them is read. Any thread; nothing blocks or is kept: results point into the
// caller's memory. Errors: kInvalidArgument (CUDA_ERROR_INVALID_IMAGE) when it is none of the known
// formats or its headers contradict themselves.
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

// The structure in .nvFatBinSegment. Version 2 belongs to -rdc=true programs: `data` is the
// container that the host linker made (SASS only) and `prelinked` a NULL-terminated array of the
// containers of the translation units, filled by a constructor at start-up. Version 1 leaves
// `prelinked` NULL.
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
  // The version of the wrapper that the containers were reached through; 0 without wrapper.
  uint32_t wrapper_version = 0;
  // One, or of a version 2 wrapper: `data`, then the prelinked containers. Text comes without its
  // NUL.
  std::vector<Bytes> parts;
};

// The memory behind `pointer` must be as long as its headers say: it is the application's own.
Result<Image> measure(const void* pointer);

// A bare container, ELF image or text that starts at bytes[0]. A wrapper is refused: its pointers
// mean nothing outside the process that made them.
Result<Image> inspect(Bytes bytes);

}  // namespace rcuda::image
