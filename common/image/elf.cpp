#include "common/image/elf.h"

#include <algorithm>

#include "common/image/byte_reader.h"

namespace rcuda::image {
namespace {

Status malformed(const char* what) {
  return Status(Code::kInvalidArgument, std::string("malformed ELF image: ") + what);
}

Result<Elf64_Ehdr> read_header(Bytes bytes) {
  Elf64_Ehdr header;
  if (!read_at(bytes, 0, &header)) return malformed("truncated header");
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_ident[EI_DATA] != ELFDATA2LSB) {
    return malformed("not a little-endian ELF64");
  }
  if (header.e_shnum != 0 && header.e_shentsize != sizeof(Elf64_Shdr)) {
    return malformed("wrong size of section headers");
  }
  if (header.e_phnum != 0 && header.e_phentsize != sizeof(Elf64_Phdr)) {
    return malformed("wrong size of program headers");
  }
  return header;
}

// Sets the number of sections. If there are 65280 or more, the first section header contains the
// number.
bool section_count(Bytes bytes, const Elf64_Ehdr& header, uint64_t* count) {
  *count = header.e_shnum;
  if (header.e_shnum != 0 || header.e_shoff == 0) return true;
  Elf64_Shdr first;
  if (!read_at(bytes, header.e_shoff, &first)) return false;
  *count = first.sh_size;
  return true;
}

}  // namespace

Result<uint64_t> elf_size(Bytes bytes) {
  RCUDA_ASSIGN_OR_RETURN(const Elf64_Ehdr header, read_header(bytes));

  uint64_t end = sizeof(Elf64_Ehdr);
  const auto cover = [&](uint64_t offset, uint64_t size) {
    if (!fits(offset, size, bytes.size())) return false;
    end = std::max(end, offset + size);
    return true;
  };
  uint64_t sections = 0;
  if (!section_count(bytes, header, &sections) || sections > bytes.size() / sizeof(Elf64_Shdr) ||
      !cover(header.e_shoff, sections * sizeof(Elf64_Shdr))) {
    return malformed("section headers outside the image");
  }
  if (!cover(header.e_phoff, header.e_phnum * sizeof(Elf64_Phdr))) {
    return malformed("program headers outside the image");
  }
  for (uint64_t i = 0; i < sections; ++i) {
    Elf64_Shdr section;
    if (!read_at(bytes, header.e_shoff + i * sizeof section, &section))
      return malformed("truncated section header");
    if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) continue;
    if (!cover(section.sh_offset, section.sh_size)) return malformed("section outside the image");
  }
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!read_at(bytes, header.e_phoff + i * sizeof segment, &segment))
      return malformed("truncated program header");
    if (!cover(segment.p_offset, segment.p_filesz)) return malformed("segment outside the image");
  }
  return end;
}

Result<ElfSections> elf_sections(Bytes image) {
  RCUDA_ASSIGN_OR_RETURN(const Elf64_Ehdr header, read_header(image));
  ElfSections sections;
  sections.image = image;
  uint64_t count = 0;
  if (!section_count(image, header, &count) || count > image.size() / sizeof(Elf64_Shdr)) {
    return malformed("section headers outside the image");
  }
  sections.headers.resize(count);
  for (uint64_t i = 0; i < count; ++i) {
    if (!fits(header.e_shoff, (i + 1) * sizeof(Elf64_Shdr), image.size()) ||
        !read_at(image, header.e_shoff + i * sizeof(Elf64_Shdr), &sections.headers[i])) {
      return malformed("section headers outside the image");
    }
  }
  uint64_t names = header.e_shstrndx;
  if (names == SHN_XINDEX && count != 0) names = sections.headers[0].sh_link;
  if (names < count) sections.names = sections.content(sections.headers[names]);
  return sections;
}

std::string_view ElfSections::name(const Elf64_Shdr& header) const {
  return string_at(names, header.sh_name);
}

Bytes ElfSections::content(const Elf64_Shdr& header) const {
  if (header.sh_type == SHT_NOBITS || !fits(header.sh_offset, header.sh_size, image.size())) {
    return {};
  }
  return image.subspan(header.sh_offset, header.sh_size);
}

std::string_view string_at(Bytes table, uint64_t offset) {
  if (offset >= table.size()) return {};
  const char* begin = reinterpret_cast<const char*>(table.data()) + offset;
  const void* end = std::memchr(begin, 0, table.size() - offset);
  if (end == nullptr) return {};
  return {begin, static_cast<size_t>(static_cast<const char*>(end) - begin)};
}

}  // namespace rcuda::image
