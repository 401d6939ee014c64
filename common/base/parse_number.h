// Numbers in texts. Any thread; nothing blocks.
#pragma once

#include <charconv>
#include <string_view>
#include <system_error>

namespace rcuda {

// Parses the whole of `text`. False, and nothing is changed, if it is not a number of this type.
template <typename Number>
bool parse_number(std::string_view text, Number* number) {
  const char* const end = text.data() + text.size();
  Number parsed{};
  const auto [rest, error] = std::from_chars(text.data(), end, parsed);
  if (error != std::errc() || rest != end) return false;
  *number = parsed;
  return true;
}

}  // namespace rcuda
