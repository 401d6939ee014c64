#include "common/base/json_text.h"

#include <cstdio>

namespace rcuda {
namespace {

// The length of the UTF-8 sequence that begins here, or 0 if it is none.
size_t sequence_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t bytes = byte(0) < 0x80         ? 1
                       : byte(0) >> 5 == 0x06 ? 2
                       : byte(0) >> 4 == 0x0e ? 3
                       : byte(0) >> 3 == 0x1e ? 4
                                              : 0;
  if (bytes == 0 || bytes > text.size()) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if (byte(i) >> 6 != 0x02) return 0;
  }
  return bytes;
}

}  // namespace

std::string json_text(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t bytes = sequence_bytes(text);
    const char first = text.front();
    if (bytes == 0) {
      out += '?';
    } else if (first == '"' || first == '\\') {
      out += {'\\', first};
    } else if (static_cast<unsigned char>(first) < 0x20 || first == 0x7f) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(first));
      out += code;
    } else {
      out += text.substr(0, bytes);
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return out + '"';
}

}  // namespace rcuda
