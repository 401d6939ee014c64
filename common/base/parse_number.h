// Reads a number. Any thread.
#pragma once

#include <charconv>
#include <string_view>
#include <system_error>

namespace rcuda {

// Returns false if the whole text is not a number of this type; then *number is undefined.
template <typename T>
bool parse_number(std::string_view text, T* number, int base = 10) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, *number, base);
  return error == std::errc() && rest == end;
}

}  // namespace rcuda
