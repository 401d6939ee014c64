#include "common/image/kernel_names.h"

#include <string_view>

#include "common/image/byte_reader.h"
#include "common/image/elf.h"
#include "common/image/ptx_words.h"

namespace rcuda::image {
namespace {

constexpr unsigned char kEntryPoint = 0x10;  // in st_other of kernels
constexpr uint16_t kCudaMachine = 190;

Status malformed(const char* what) {
  return Status(Code::kInvalidArgument, std::string("malformed image: ") + what);
}

Result<std::vector<std::string>> cubin_kernels(Bytes image) {
  const Result<ElfSections> sections = elf_sections(image);
  if (!sections.ok()) return sections.status();
  Elf64_Ehdr header;
  if (!read_at(image, 0, &header) || header.e_machine != kCudaMachine) {
    return malformed("its ELF header names another machine than CUDA");
  }
  std::vector<std::string> kernels;
  for (const Elf64_Shdr& section : sections->headers) {
    if (section.sh_type != SHT_SYMTAB) continue;
    if (section.sh_link >= sections->headers.size()) {
      return malformed("its symbol table refers to a section that does not exist");
    }
    const Bytes names = sections->content(sections->headers[section.sh_link]);
    const Bytes symbols = sections->content(section);
    Elf64_Sym symbol;
    for (uint64_t at = 0; read_at(symbols, at, &symbol); at += sizeof symbol) {
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && (symbol.st_other & kEntryPoint) != 0) {
        kernels.emplace_back(string_at(names, symbol.st_name));
      }
    }
  }
  return kernels;
}

Result<std::vector<std::string>> ptx_kernels(Bytes text) {
  Words words({reinterpret_cast<const char*>(text.data()), text.size()});
  std::vector<std::string> kernels;
  for (std::string_view word = words.next(); !word.empty(); word = words.next()) {
    if (word != ".entry") continue;
    const std::string_view name = words.next();
    if (name.empty() || !is_word(name[0])) return malformed("it has a kernel without a name");
    kernels.emplace_back(name);
  }
  return kernels;
}

}  // namespace

Result<std::vector<std::string>> kernel_names(const Image& image) {
  switch (image.format) {
    case Format::kElf:
      return cubin_kernels(image.parts.front());
    case Format::kText:
      return ptx_kernels(image.parts.front());
    case Format::kFatbin:
      break;
  }
  return Status(Code::kUnsupported,
                "cannot list the kernels of a fatbin: only cubins and PTX are read");
}

}  // namespace rcuda::image
