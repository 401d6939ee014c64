// Reads a number from a text. Any thread.
#pragma once

#include <charconv>
#include <string_view>
#include <system_error>

namespace rcuda {

// Sets *number and returns true if the whole text is one integer of this type. Otherwise returns
// false and leaves *number unchanged.
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
