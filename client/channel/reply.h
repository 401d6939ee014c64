// What a worker answered, or that it is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <cuda.h>

namespace rcuda::client {

class Session;

// What the application sees when a worker or its server is gone: "all CUDA-capable devices are busy
// or unavailable", and it stays.
inline constexpr CUresult kSessionLost = CUDA_ERROR_DEVICE_UNAVAILABLE;

// A reply's body, after ReplyHeader; owns its slot until destroyed.
class Reply {
 public:
  Reply() = default;
  ~Reply();
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;
  std::span<const std::byte> body() const { return body_; }

 private:
  friend class Session;
  Session* session_ = nullptr;
  uint32_t slot_ = 0;
  std::span<const std::byte> body_;
};

}  // namespace rcuda::client
