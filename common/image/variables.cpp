#include "common/image/variables.h"

#include <algorithm>
#include <string>

#include "common/base/parse_number.h"
#include "common/image/elf.h"
#include "common/image/ptx_words.h"
#include "common/image/unpack.h"

namespace rcuda::image {
namespace {

uint64_t sum(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  return __builtin_add_overflow(a, b, &result) ? UINT64_MAX : result;
}

uint64_t product(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

// Returns the value of a plain number, or UINT64_MAX for any other constant expression.
uint64_t plain_number(std::string_view word) {
  if (word.ends_with('U')) word.remove_suffix(1);
  const bool hexadecimal = word.starts_with("0x") || word.starts_with("0X");
  const std::string_view digits = hexadecimal ? word.substr(2) : word;
  uint64_t value = 0;
  return rcuda::parse_number(digits, &value, hexadecimal ? 16 : 10) ? value : UINT64_MAX;
}

// Reads an extent after its opening bracket. `[8]` is 8 elements, `<8>` is 8 variables. `[]` sets
// `*open`: the number of elements follows from the initialiser.
uint64_t extent(Words& words, std::string_view close, bool* open) {
  const std::string_view word = words.next();
  if (word == close) {
    *open = true;
    return 1;
  }
  const uint64_t value = plain_number(word);
  return words.next() == close ? value : UINT64_MAX;
}

// Reads a declaration, from the word after ".global" to the ";". Returns the bytes that its
// variables take.
uint64_t declared_bytes(Words& words) {
  uint64_t element = 0, vector = 1, padding = 0, bytes = 0;
  // State of the variable that is being read; a declaration may list several variables.
  uint64_t elements = 1, initialised = 1, depth = 0;
  bool open = false, initialiser = false;
  const auto add = [&] {
    if (open) elements = product(elements, initialised);
    bytes = sum(bytes, sum(padding, product(element, product(vector, elements))));
    elements = initialised = 1;
    open = initialiser = false;
  };
  for (std::string_view word = words.next(); !word.empty() && word != ";"; word = words.next()) {
    if (initialiser && (depth != 0 || word != ",")) {
      if (word == "{" || word == "(") ++depth;
      if ((word == "}" || word == ")") && depth) --depth;
      initialised += word == ",";
    } else if (word == "=") {
      initialiser = true;
    } else if (word == ".align") {
      padding = plain_number(words.next());
      padding -= padding != 0;
    } else if (word == ".v2" || word == ".v4" || word == ".v8") {
      vector = static_cast<uint64_t>(word[2] - '0');
    } else if (word == "[") {
      elements = product(elements, extent(words, "]", &open));
    } else if (word == "<") {
      elements = product(elements, extent(words, ">", &open));
    } else if (word == ",") {
      add();
    } else if (const uint64_t size = bytes_of_type(word)) {
      element = size;
    }
  }
  add();
  return bytes;
}

Result<uint64_t> elf_variable_bytes(Bytes image) {
  RCUDA_ASSIGN_OR_RETURN(const ElfSections sections, elf_sections(image));
  uint64_t bytes = 0;
  for (const Elf64_Shdr& header : sections.headers) {
    constexpr auto kVariable = SHF_ALLOC | SHF_WRITE;
    const bool shared = sections.name(header).starts_with(".nv.shared");
    if ((header.sh_flags & kVariable) == kVariable && !shared) bytes = sum(bytes, header.sh_size);
  }
  return bytes;
}

Bytes bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// The driver chooses one of several entries. Returns the bytes that the variables take in the entry
// that needs most.
Result<uint64_t> container_variable_bytes(Bytes container, uint32_t sm) {
  RCUDA_ASSIGN_OR_RETURN(const std::vector<Entry> list, entries(container));
  uint64_t most = 0;
  const Entry* const ptx = select_ptx(list, sm);
  for (const Entry& entry : list) {
    const bool elf = entry.kind == EntryKind::kElf && entry.sm / 10 == sm / 10;
    if (!elf && &entry != ptx) continue;
    RCUDA_ASSIGN_OR_RETURN(const std::string code, decompress(entry));
    RCUDA_ASSIGN_OR_RETURN(const uint64_t bytes, elf ? elf_variable_bytes(bytes_of(code))
                                                     : Result<uint64_t>(ptx_variable_bytes(code)));
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace

// Adds up the declarations with `.global`. The word is also a part of instructions (ld.global) and
// of parameter lists. It is a declaration if it is outside of parentheses and, inside a function,
// begins a statement.
uint64_t ptx_variable_bytes(std::string_view text) {
  Words words(text);
  uint64_t bytes = 0, braces = 0, parentheses = 0;
  std::string_view before;
  for (std::string_view word = words.next(); !word.empty(); word = words.next()) {
    if (word == "{") ++braces;
    if (word == "}" && braces) --braces;
    if (word == "(") ++parentheses;
    if (word == ")" && parentheses) --parentheses;
    // A statement also begins after a label, or after the number that ends a directive.
    const bool begins = before == ";" || before == "{" || before == "}" || before == ":" ||
                        (!before.empty() && before[0] >= '0' && before[0] <= '9');
    if (word == ".global" && parentheses == 0 && (braces == 0 || begins)) {
      const uint64_t declared = declared_bytes(words);
      if (before != ".extern") bytes = sum(bytes, declared);
      word = ";";
    }
    before = word;
  }
  return bytes;
}

Result<uint64_t> variable_bytes(const Image& image, uint32_t sm) {
  if (image.format == Format::kElf) return elf_variable_bytes(image.parts.at(0));
  if (image.format == Format::kText) {
    const Bytes text = image.parts.at(0);
    return ptx_variable_bytes({reinterpret_cast<const char*>(text.data()), text.size()});
  }
  // The first container of a version 2 wrapper repeats the content of the others.
  uint64_t linked = 0, units = 0;
  for (size_t i = 0; i < image.parts.size(); ++i) {
    RCUDA_ASSIGN_OR_RETURN(const uint64_t bytes, container_variable_bytes(image.parts[i], sm));
    uint64_t& total = i == 0 ? linked : units;
    total = sum(total, bytes);
  }
  return std::max(linked, units);
}

}  // namespace rcuda::image
