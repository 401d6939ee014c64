// Reads a number from a text. Any thread.
#pragma once

#include <charconv>
#include <string_view>
#include <system_error>

namespace rcuda {

// Returns false, and leaves *number as it is, unless the whole text is a whole number of this type.
template <typename Number>
bool parse_number(std::string_view text, Number* number, int base = 10) {
  const char* const end = text.data() + text.size();
  Number parsed{};
  const auto [rest, error] = std::from_chars(text.data(), end, parsed, base);
  if (error != std::errc() || rest != end) return false;
  *number = parsed;
  return true;
}

}  // namespace rcuda
