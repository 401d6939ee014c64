#include "common/base/printable.h"

#include <algorithm>

namespace rcuda {
namespace {

bool is_in(char32_t code, char32_t first, char32_t last) { return code >= first && code <= last; }

bool is_control(char32_t code) {
  return code < 0x20 || is_in(code, 0x7f, 0x9f) ||  // C0; DEL and C1
         is_in(code, 0x2028, 0x2029) ||             // line and paragraph separator
         code == 0x061c || is_in(code, 0x200e, 0x200f) || is_in(code, 0x202a, 0x202e) ||
         is_in(code, 0x2066, 0x2069);  // bidirectional text
}

// The least code point that UTF-8 encodes in each number of bytes (the index). A longer encoding
// than necessary is invalid.
constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};

}  // namespace

Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const size_t bytes = first < 0x80         ? 1
                       : first >> 5 == 0x06 ? 2
                       : first >> 4 == 0x0e ? 3
                       : first >> 3 == 0x1e ? 4
                                            : 0;
  const Character invalid{1, first, false, false};
  if (bytes == 0 || bytes > text.size()) return invalid;
  char32_t code = bytes == 1 ? first : first & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if (byte(i) >> 6 != 0x02) return invalid;
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool is_surrogate = is_in(code, 0xd800, 0xdfff);
  if (code < kLeast[bytes] || code > 0x10ffff || is_surrogate) return invalid;
  return {bytes, code, true, !is_control(code)};
}

bool is_printable(std::string_view text) {
  while (!text.empty()) {
    const Character character = first_character(text);
    if (!character.printable) return false;
    text.remove_prefix(character.bytes);
  }
  return true;
}

void make_printable(std::span<char> text) {
  while (!text.empty()) {
    const Character character = first_character({text.data(), text.size()});
    if (!character.printable) std::fill_n(text.begin(), character.bytes, '?');
    text = text.subspan(character.bytes);
  }
}

std::string printable(std::string text) {
  make_printable(text);
  return text;
}

}  // namespace rcuda
