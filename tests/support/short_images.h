// Truncated images: their headers refer to bytes past the end, far enough that nothing is mapped
// there.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <elf.h>

#include "common/image/image.h"

namespace rcuda::test {

template <typename Header>
std::string as_text(const Header& header) {
  return {reinterpret_cast<const char*>(&header), sizeof header};
}

inline std::string short_fatbin() {
  constexpr uint64_t kMissingBytes = 1000u << 20;
  struct {
    uint32_t magic = image::kContainerMagic;
    uint16_t version = 1, header_bytes = 16;
    uint64_t size_bytes = 64 + kMissingBytes;
  } container;
  struct {
    uint16_t kind = 1, version = 0x101;  // PTX
    uint32_t header_bytes = 64;
    uint64_t payload_bytes = kMissingBytes;
    uint32_t rest[12] = {0, 0, 0, 70};  // for sm_70, not compressed
  } entry;
  static_assert(sizeof container == 16 && sizeof entry == 64);
  return as_text(container) + as_text(entry);
}

inline std::string short_elf() {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_shoff = uint64_t{1} << 46;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 2;
  return as_text(header);
}

// A wrapper as it is in another process: its pointer is not valid here.
inline std::string wrapper_from_elsewhere() {
  return as_text(image::FatbinWrapper{image::kWrapperMagic, 1,
                                      reinterpret_cast<const void*>(uint64_t{1} << 46), nullptr});
}

inline std::vector<std::string> short_images() {
  return {short_fatbin(), short_elf(), wrapper_from_elsewhere()};
}

}  // namespace rcuda::test
