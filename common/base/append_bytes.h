// Appends items to a message. Any thread; nothing blocks.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace rcuda {

// `items`: a vector or a span.
template <typename Items>
void append_bytes(std::vector<std::byte>* bytes, const Items& items) {
  const auto more = std::as_bytes(std::span(items));
  bytes->insert(bytes->end(), more.begin(), more.end());
}

}  // namespace rcuda
