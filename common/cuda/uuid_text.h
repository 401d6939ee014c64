// The text by which NVIDIA's tools name a device: "GPU-00112233-4455-6677-8899-aabbccddeeff"; for a
// part of a GPU (a MIG device) it begins with "MIG-".
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

namespace rcuda::cuda {

// Recognises a MIG device by its name: the CUDA driver reports in no other way that a device is a
// part of a GPU.
inline bool is_mig_name(std::string_view name) { return name.find(" MIG ") != name.npos; }

inline std::string uuid_text(std::span<const uint8_t, 16> uuid, bool mig = false) {
  std::string text = mig ? "MIG-" : "GPU-";
  for (size_t i = 0; i < uuid.size(); ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", uuid[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

}  // namespace rcuda::cuda
