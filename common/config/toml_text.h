// Checks TOML text before toml++ 3.3 parses it.
//
// Where toml++ does not expect a character that is not ASCII, it looks the character up in a table
// of blanks. That table has __builtin_unreachable() where many characters lead (U+0468, found by
// text_fuzz), so the behaviour is undefined. Such characters are therefore refused, except in
// comment lines. Quoted text can contain them as \u escapes.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace rcuda::config {

// The number, from 1, of the first line that is not a comment and not all ASCII.
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
