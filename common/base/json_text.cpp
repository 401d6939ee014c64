#include "common/base/json_text.h"

#include <cstdio>

#include "common/base/printable.h"

namespace rcuda {
std::string json_text(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const Character character = first_character(text);
    const char first = text.front();
    if (!character.valid) {
      out += '?';
    } else if (first == '"' || first == '\\') {
      out += {'\\', first};
    } else if (!character.printable) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(character.code));
      out += code;
    } else {
      out += text.substr(0, character.bytes);
    }
    text.remove_prefix(character.bytes);
  }
  return out + '"';
}

}  // namespace rcuda
