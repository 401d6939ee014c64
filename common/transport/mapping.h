// Mapping owns one range of mapped memory and unmaps it. Move-only; not thread-safe.
#pragma once

#include <cstddef>
#include <utility>

#include <sys/mman.h>

#include "common/base/status.h"

namespace rcuda::transport {

class Mapping {
 public:
  Mapping() = default;
  // `reserved`: the range belongs to the caller; unmapping leaves it reserved and inaccessible.
  Mapping(void* base, size_t bytes, bool reserved = false)
      : base_(base), bytes_(bytes), reserved_(reserved) {}
  // Zeroed memory. Empty, with errno, if the system has too little.
  static Mapping anonymous(size_t bytes) {
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return base == MAP_FAILED ? Mapping() : Mapping(base, bytes);
  }
  Mapping(Mapping&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        reserved_(other.reserved_) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    std::swap(reserved_, other.reserved_);
    return *this;
  }
  ~Mapping() {
    if (base_ == nullptr) return;
    if (reserved_) {
      ::mmap(base_, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0);
    } else {
      ::munmap(base_, bytes_);
    }
  }

  std::byte* data() const { return static_cast<std::byte*>(base_); }
  size_t size() const { return bytes_; }
  explicit operator bool() const { return base_ != nullptr; }

 private:
  void* base_ = nullptr;
  size_t bytes_ = 0;
  bool reserved_ = false;
};

}  // namespace rcuda::transport
