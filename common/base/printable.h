// Makes texts of a peer safe to write to a terminal, a log, a table or JSON. A peer may send any
// bytes, and they must neither control a terminal nor look like additional lines.
//
// These are not printable: control characters (C0, DEL, C1), the separators of lines and
// paragraphs, the controls of bidirectional text, and bytes that are not UTF-8 (some terminals obey
// a single byte from 0x80 to 0x9f). Pure functions; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace rcuda {

struct Character {
  size_t bytes = 1;   // its length in the text
  char32_t code = 0;  // the byte itself if `valid` is false
  bool valid = false;
  bool printable = false;
};
// `text` must not be empty.
Character first_character(std::string_view text);

bool is_printable(std::string_view text);
// Replaces each byte of unprintable characters by '?'.
void make_printable(std::span<char> text);
std::string printable(std::string text);

}  // namespace rcuda
