// The parts of ELF64 that reading cubins needs: the length of an image, and its sections. Private
// to this folder.
#pragma once

#include <string_view>

#include <elf.h>

#include "common/image/image.h"

namespace rcuda::image {

// Returns the size of the image: the largest end of its headers, sections and segments. `bytes` may
// be longer. kInvalidArgument if `bytes` is shorter or is not an ELF64 image.
Result<uint64_t> elf_size(Bytes bytes);

// Section headers and names of an image that elf_size() accepted.
struct ElfSections {
  Bytes image;
  std::vector<Elf64_Shdr> headers;
  Bytes names;

  std::string_view name(const Elf64_Shdr& header) const;  // "" outside of `names`
  Bytes content(const Elf64_Shdr& header) const;          // empty for SHT_NOBITS
};
Result<ElfSections> elf_sections(Bytes image);

// Returns the string at `offset` of a string table, without its NUL; "" if no NUL ends it.
std::string_view string_at(Bytes table, uint64_t offset);

}  // namespace rcuda::image
