// Checks TOML text before toml++ 3.3 parses it.
//
// toml++ looks up an unexpected character outside ASCII in a table of blanks. For many characters
// the look-up reaches __builtin_unreachable() (U+0468, found by text_fuzz), so the behaviour is
// undefined. Such characters are therefore refused, except in comment lines. Quoted text can
// contain them as \u escapes.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace rcuda::config {

// Returns the number (from 1) of the first line that is not a comment line and has a character
// outside ASCII. Returns nullopt if there is no such line.
inline std::optional<size_t> foreign_character(std::string_view text) {
  size_t line = 1;
  bool blank = true, comment = false;
  for (const char c : text) {
    if (c == '\n') {
      ++line;
      blank = true;
      comment = false;
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      if (!comment) return line;
    } else if (c != ' ' && c != '\t') {
      if (blank) comment = c == '#';
      blank = false;
    }
  }
  return std::nullopt;
}

}  // namespace rcuda::config
