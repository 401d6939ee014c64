// A worker's reply, and the error of a lost session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <cuda.h>

namespace rcuda::client {

class Session;

// The result of every call after a worker or its server is lost: "all CUDA-capable devices are busy
// or unavailable". It is permanent.
inline constexpr CUresult kSessionLost = CUDA_ERROR_DEVICE_UNAVAILABLE;

// The body of a reply, without the ReplyHeader. Owns the reply slot until it is destroyed.
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
