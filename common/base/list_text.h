// Writes and reads lists in messages and files. Any thread; nothing blocks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rcuda {

// Returns the numbers as a list for messages: "0, 1 and 2".
inline std::string list_of(const std::vector<uint32_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i) text += i + 1 == numbers.size() ? " and " : ", ";
    text += std::to_string(numbers[i]);
  }
  return text;
}

inline void append_item(std::string* list, std::string_view item,
                        std::string_view separator = ", ") {
  if (!list->empty()) *list += separator;
  *list += item;
}

// Returns the numbers as a list for files and settings: "0,1,2".
inline std::string comma_list(const std::vector<uint32_t>& numbers) {
  std::string text;
  for (const uint32_t number : numbers) append_item(&text, std::to_string(number), ",");
  return text;
}

// Returns the text without the blanks and line ends at its two ends.
inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n\v\f";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// Removes the first item and the `separator` after it from `list`. Returns the item.
inline std::string_view take_item(std::string_view* list, char separator) {
  const size_t end = std::min(list->find(separator), list->size());
  const std::string_view item = list->substr(0, end);
  list->remove_prefix(std::min(end + 1, list->size()));
  return item;
}

}  // namespace rcuda
