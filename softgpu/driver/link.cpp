#include "softgpu/driver/link.h"

#include <cstring>

#include <elf.h>

namespace softgpu::driver {
namespace {

constexpr uint16_t kMachineCuda = 190;
constexpr char kSectionNames[] = "\0.softgpu.ptx\0.shstrtab";
constexpr uint32_t kPtxName = 1, kNamesName = 14;

void append(std::vector<std::byte>* image, const void* data, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  image->insert(image->end(), begin, begin + bytes);
  image->resize((image->size() + 7) / 8 * 8);
}

}  // namespace

std::vector<std::byte> link_image(const std::vector<std::string>& units) {
  std::vector<std::byte> image(sizeof(Elf64_Ehdr));
  std::vector<Elf64_Shdr> sections(1);  // the first is null
  auto add = [&](uint32_t name, uint32_t type, const void* data, size_t bytes) {
    Elf64_Shdr section{};
    section.sh_name = name;
    section.sh_type = type;
    section.sh_offset = image.size();
    section.sh_size = bytes;
    section.sh_addralign = 8;
    sections.push_back(section);
    append(&image, data, bytes);
  };
  for (const std::string& unit : units) add(kPtxName, SHT_PROGBITS, unit.data(), unit.size());
  add(kNamesName, SHT_STRTAB, kSectionNames, sizeof kSectionNames);

  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_EXEC;
  header.e_machine = kMachineCuda;
  header.e_version = EV_CURRENT;
  header.e_ehsize = sizeof header;
  header.e_shoff = image.size();
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = static_cast<uint16_t>(sections.size());
  header.e_shstrndx = static_cast<uint16_t>(sections.size() - 1);
  std::memcpy(image.data(), &header, sizeof header);
  append(&image, sections.data(), sections.size() * sizeof(Elf64_Shdr));
  return image;
}

bool linked_units(rcuda::image::Bytes image, std::vector<std::string>* units) {
  auto fits = [&](uint64_t offset, uint64_t bytes) {
    return offset <= image.size() && bytes <= image.size() - offset;
  };
  Elf64_Ehdr header;
  if (!fits(0, sizeof header)) return false;
  std::memcpy(&header, image.data(), sizeof header);
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shstrndx >= header.e_shnum ||
      !fits(header.e_shoff, uint64_t{header.e_shnum} * sizeof(Elf64_Shdr))) {
    return false;
  }
  auto section = [&](size_t index) {
    Elf64_Shdr result;
    std::memcpy(&result, image.data() + header.e_shoff + index * sizeof result, sizeof result);
    return result;
  };
  const Elf64_Shdr names = section(header.e_shstrndx);
  if (names.sh_size != sizeof kSectionNames || !fits(names.sh_offset, names.sh_size) ||
      std::memcmp(image.data() + names.sh_offset, kSectionNames, sizeof kSectionNames) != 0) {
    return false;
  }
  for (size_t i = 1; i < header.e_shnum; ++i) {
    const Elf64_Shdr unit = section(i);
    if (unit.sh_name != kPtxName) continue;
    if (!fits(unit.sh_offset, unit.sh_size)) return false;
    units->emplace_back(reinterpret_cast<const char*>(image.data() + unit.sh_offset), unit.sh_size);
  }
  return !units->empty();
}

}  // namespace softgpu::driver
