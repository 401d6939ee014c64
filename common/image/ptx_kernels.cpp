#include "common/image/ptx_kernels.h"

#include <string>

#include "common/image/ptx_words.h"

namespace rcuda::image {
namespace {

constexpr uint64_t kLargestParameters = 1u << 16;

Status malformed(std::string_view what) {
  return Status(Code::kInvalidArgument, "malformed PTX: " + std::string(what));
}

struct Declaration {
  uint64_t element_bytes = 0, elements = 1, alignment = 0;
};

// Reads from after ".param" up to the end of the declaration. `*end` is then `,` or `)`.
Result<Declaration> read_declaration(Words& words, std::string_view* end) {
  Declaration parameter;
  bool is_pointer = false;  // .align is then the target's
  for (std::string_view word = words.next();; word = words.next()) {
    if (word.empty()) return malformed("a parameter list does not end");
    if (word == "," || word == ")") {
      *end = word;
      break;
    }
    uint64_t number = 0;
    if (word == ".ptr") {
      is_pointer = true;
    } else if (word == ".align") {
      if (!parse_number(words.next(), &number) || number == 0 || (number & (number - 1)) != 0) {
        return malformed("an alignment");
      }
      if (!is_pointer) parameter.alignment = number;
    } else if (word == "[") {
      if (!parse_number(words.next(), &number) || number > kLargestParameters) {
        return malformed("the size of a parameter");
      }
      parameter.elements *= number;
    } else if (word == ".v2" || word == ".v4") {
      parameter.elements *= word == ".v2" ? 2 : 4;
    } else if (const uint64_t bytes = bytes_of_type(word)) {
      parameter.element_bytes = bytes;
    }
    if (parameter.elements > kLargestParameters) return malformed("the size of a parameter");
  }
  if (parameter.element_bytes == 0) return malformed("a parameter without a type");
  if (parameter.alignment == 0) parameter.alignment = parameter.element_bytes;
  return parameter;
}

// Reads from after ".entry".
Result<KernelLayout> read_entry(Words& words) {
  KernelLayout kernel;
  kernel.name = words.next();
  if (kernel.name.empty() || !is_word(kernel.name[0])) return malformed("a kernel without a name");
  if (words.next() != "(") return kernel;
  uint64_t offset = 0;
  std::string_view word = words.next();
  while (word != ")") {
    if (word != ".param") return malformed("a parameter list");
    const Result<Declaration> parameter = read_declaration(words, &word);
    if (!parameter.ok()) return parameter.status();
    const uint64_t size = parameter->element_bytes * parameter->elements;
    offset = (offset + parameter->alignment - 1) & ~(parameter->alignment - 1);
    if (offset + size > kLargestParameters) return malformed("parameters too large");
    kernel.parameters.push_back({static_cast<uint32_t>(offset), static_cast<uint32_t>(size)});
    offset += size;
    if (word == ",") word = words.next();
  }
  kernel.parameter_bytes = static_cast<uint32_t>(offset);
  return kernel;
}

}  // namespace

Result<std::vector<KernelLayout>> ptx_kernels(std::string_view text) {
  Words words(text);
  std::vector<KernelLayout> kernels;
  for (std::string_view word = words.next(); !word.empty(); word = words.next()) {
    if (word != ".entry") continue;
    Result<KernelLayout> kernel = read_entry(words);
    if (!kernel.ok()) return kernel.status();
    kernels.push_back(std::move(*kernel));
  }
  return kernels;
}

}  // namespace rcuda::image
