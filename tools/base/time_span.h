// Times as options have them.
#pragma once

#include <charconv>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rcuda::tools {

// "30s", "90min", "12h", "30d", "8w"; a hundred years at most. Null for any other text.
inline std::optional<std::chrono::seconds> parse_time_span(const std::string& text) {
  int64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, count);
  const std::string_view unit(rest, end);
  const int64_t each = unit == "s"     ? 1
                       : unit == "min" ? 60
                       : unit == "h"   ? 3600
                       : unit == "d"   ? 24 * 3600
                       : unit == "w"   ? 7 * 24 * 3600
                                       : 0;
  constexpr int64_t kMost = int64_t{100} * 366 * 24 * 3600;
  if (error != std::errc() || each == 0 || count < 0 || count > kMost / each) return {};
  return std::chrono::seconds(count * each);
}

}  // namespace rcuda::tools
