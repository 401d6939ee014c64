#include "common/image/image.h"

#include <limits>

#include "common/image/byte_reader.h"
#include "common/image/elf.h"
#include "common/image/fatbin.h"

namespace rcuda::image {
namespace {

// The most prelinked containers of a wrapper: more than any program has translation units.
constexpr size_t kMaxContainers = 1u << 20;

// Compares byte by byte, because `bytes` may be shorter than the magic.
bool starts_with(Bytes bytes, uint32_t magic) {
  for (size_t i = 0; i < sizeof magic; ++i) {
    if (i == bytes.size() || std::to_integer<uint8_t>(bytes[i]) != uint8_t(magic >> (8 * i))) {
      return false;
    }
  }
  return true;
}

constexpr uint32_t kElfMagic = 0x464C457F;

// PTX begins with a directive or a comment, possibly after blanks.
bool may_be_text(Bytes bytes) {
  if (bytes.empty()) return false;
  switch (std::to_integer<char>(bytes[0])) {
    case '.':
    case '/':
    case ' ':
    case '\t':
    case '\r':
    case '\n':
      return true;
    default:
      return false;
  }
}

Result<Image> inspect_bare(Bytes bytes) {
  Image image;
  if (starts_with(bytes, kContainerMagic)) {
    RCUDA_ASSIGN_OR_RETURN(const Bytes container, container_extent(bytes));
    image.format = Format::kFatbin;
    image.parts.push_back(container);
  } else if (starts_with(bytes, kElfMagic)) {
    RCUDA_ASSIGN_OR_RETURN(const uint64_t size, elf_size(bytes));
    image.format = Format::kElf;
    image.parts.push_back(bytes.first(size));
  } else if (may_be_text(bytes)) {
    // strnlen, because memchr requires that all bytes up to its bound are readable.
    const char* text = reinterpret_cast<const char*>(bytes.data());
    image.format = Format::kText;
    image.parts.push_back(bytes.first(strnlen(text, bytes.size())));
  } else {
    return Status(Code::kInvalidArgument, "the image is neither a fatbin nor ELF nor PTX");
  }
  return image;
}

// Returns all memory from `pointer` on. The caller then takes the length from the image's headers.
Bytes unbounded(const void* pointer) {
  const uint64_t room =
      std::numeric_limits<uint64_t>::max() / 2 - reinterpret_cast<uintptr_t>(pointer);
  return {static_cast<const std::byte*>(pointer), room};
}

Result<Image> measure_wrapper(const void* pointer) {
  FatbinWrapper wrapper;
  std::memcpy(&wrapper, pointer, sizeof wrapper);
  if (wrapper.version != 1 && wrapper.version != 2) {
    return Status(Code::kInvalidArgument, "the fatbin wrapper has the unknown version " +
                                              std::to_string(wrapper.version) +
                                              " (1 and 2 are supported)");
  }
  Image image;
  image.format = Format::kFatbin;
  const auto add = [&image](const void* container) -> Status {
    if (container == nullptr) {
      return Status(Code::kInvalidArgument, "the fatbin wrapper's pointer to its data is null");
    }
    RCUDA_ASSIGN_OR_RETURN(const Bytes extent, container_extent(unbounded(container)));
    image.parts.push_back(extent);
    return {};
  };
  RCUDA_RETURN_IF_ERROR(add(wrapper.data));
  if (wrapper.version == 2 && wrapper.prelinked != nullptr) {
    for (size_t i = 0; wrapper.prelinked[i] != nullptr; ++i) {
      if (i == kMaxContainers) {
        return Status(Code::kInvalidArgument,
                      "the fatbin wrapper has more than " + std::to_string(kMaxContainers) +
                          " containers, or its list of containers has no end");
      }
      RCUDA_RETURN_IF_ERROR(add(wrapper.prelinked[i]));
    }
  }
  return image;
}

}  // namespace

Result<Image> measure(const void* pointer) {
  if (pointer == nullptr) return Status(Code::kInvalidArgument, "the pointer to the image is null");
  const Bytes bytes = unbounded(pointer);
  if (starts_with(bytes, kWrapperMagic)) return measure_wrapper(pointer);
  return inspect_bare(bytes);
}

Result<Image> inspect(Bytes bytes) {
  if (starts_with(bytes, kWrapperMagic)) {
    return Status(Code::kInvalidArgument,
                  "a fatbin wrapper has pointers and is valid only in the process that made it: "
                  "load its fatbin instead");
  }
  return inspect_bare(bytes);
}

}  // namespace rcuda::image
