// The text by which NVIDIA's tools name a device: "GPU-00112233-4455-6677-8899-aabbccddeeff".
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

namespace rcuda::cuda {

inline std::string uuid_text(std::span<const uint8_t, 16> uuid) {
  std::string text = "GPU-";
  for (size_t i = 0; i < uuid.size(); ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", uuid[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

}  // namespace rcuda::cuda
