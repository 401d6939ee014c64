// lower(): converts ASCII letters to lower case, independently of the program's locale. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace rcuda {

inline std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

}  // namespace rcuda
