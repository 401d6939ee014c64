#include "common/image/cubin.h"

#include <algorithm>
#include <unordered_map>

#include "common/image/byte_reader.h"
#include "common/image/elf.h"

namespace rcuda::image {
namespace {

constexpr unsigned char kEntryPoint = 0x10;  // in st_other of kernels
constexpr uint16_t kCudaMachine = 190;
constexpr uint32_t kLargestParameters = 1u << 16;

// An attribute of .nv.info: {u8 format; u8 attribute; u16 value}; with kSized, `value` more bytes
// follow.
enum Format : uint8_t { kSized = 4 };
enum Attribute : uint8_t {
  kParameterInfo = 0x17,
  kParameterBytes = 0x19,
  kParameterInfo2 = 0x45,
};
struct AttributeHeader {
  uint8_t format;
  uint8_t attribute;
  uint16_t value;
};
struct ParameterInfo {
  uint32_t index;
  uint16_t ordinal;
  uint16_t offset_bytes;
  uint32_t packed;  // version 1: size in the upper 14 bits; version 2: in the lower 16
};
static_assert(sizeof(ParameterInfo) == 12);

Status malformed(const char* what) {
  return Status(Code::kInvalidArgument, std::string("malformed cubin: ") + what);
}

Status read_attributes(Bytes info, KernelLayout* kernel) {
  for (uint64_t at = 0; at < info.size();) {
    AttributeHeader header;
    if (!read_at(info, at, &header)) return malformed("truncated attribute");
    at += sizeof header;
    if (header.format != kSized) {
      if (header.attribute == kParameterBytes) kernel->parameter_bytes = header.value;
      continue;
    }
    if (!fits(at, header.value, info.size())) return malformed("truncated attribute");
    if (header.attribute == kParameterInfo || header.attribute == kParameterInfo2) {
      ParameterInfo parameter;
      if (header.value < sizeof parameter || !read_at(info, at, &parameter)) {
        return malformed("parameter information");
      }
      const uint32_t size =
          header.attribute == kParameterInfo ? parameter.packed >> 18 : parameter.packed & 0xffff;
      if (parameter.offset_bytes + size > kLargestParameters) return malformed("parameter");
      if (kernel->parameters.size() <= parameter.ordinal) {
        kernel->parameters.resize(parameter.ordinal + 1u);
      }
      kernel->parameters[parameter.ordinal] = {parameter.offset_bytes, size};
    }
    at += header.value;
  }
  // A missing ordinal looks like a parameter of zero bytes.
  if (std::any_of(kernel->parameters.begin(), kernel->parameters.end(),
                  [](const KernelParameter& p) { return p.size_bytes == 0; })) {
    return malformed("missing parameter");
  }
  return {};
}

}  // namespace

Result<std::vector<KernelLayout>> cubin_kernels(Bytes image) {
  const Result<ElfSections> sections = elf_sections(image);
  if (!sections.ok()) return sections.status();
  Elf64_Ehdr header;
  if (!read_at(image, 0, &header) || header.e_machine != kCudaMachine) {
    return malformed("not for CUDA");
  }

  constexpr std::string_view kInfoPrefix = ".nv.info.";
  std::unordered_map<std::string_view, Bytes> infos;
  for (const Elf64_Shdr& section : sections->headers) {
    const std::string_view name = sections->name(section);
    if (name.starts_with(kInfoPrefix)) {
      infos.emplace(name.substr(kInfoPrefix.size()), sections->content(section));
    }
  }

  // Sections of a real image do not overlap, so all attributes together are smaller than the image.
  uint64_t unread_bytes = image.size();
  std::vector<KernelLayout> kernels;
  for (const Elf64_Shdr& section : sections->headers) {
    if (section.sh_type != SHT_SYMTAB) continue;
    if (section.sh_link >= sections->headers.size()) return malformed("symbol names");
    const Bytes names = sections->content(sections->headers[section.sh_link]);
    const Bytes symbols = sections->content(section);
    Elf64_Sym symbol;
    for (uint64_t at = 0; read_at(symbols, at, &symbol); at += sizeof symbol) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || (symbol.st_other & kEntryPoint) == 0) {
        continue;
      }
      KernelLayout& kernel = kernels.emplace_back();
      kernel.name = string_at(names, symbol.st_name);
      if (const auto info = infos.find(kernel.name); info != infos.end()) {
        if (info->second.size() > unread_bytes) return malformed("overlapping sections");
        unread_bytes -= info->second.size();
        RCUDA_RETURN_IF_ERROR(read_attributes(info->second, &kernel));
      }
    }
  }
  return kernels;
}

}  // namespace rcuda::image
