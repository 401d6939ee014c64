// A look at TOML text before toml++ 3.3 parses it.
//
// toml++ asks of characters that are not ASCII, wherever it does not expect them, whether they are
// blanks, by a table with __builtin_unreachable() where many of them lead (U+0468, found by
// text_fuzz): what happens then is undefined. So they are refused everywhere but in lines that are
// comments; text in quotes can have them as \u escapes.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace rcuda::config {

// The first line, from 1, that is no comment and not all ASCII.
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
