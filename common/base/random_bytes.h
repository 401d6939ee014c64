// fill_randomly(): random bytes from the kernel, for secrets and unique names. Any thread. Blocks
// only until the kernel has its first random numbers after the boot.
#pragma once

#include <cerrno>
#include <cstdint>
#include <span>

#include <sys/random.h>

#include "common/base/status.h"

namespace rcuda {

// Fills `bytes`, which must be at most 256 bytes: getrandom() never returns a part of so few.
inline Status fill_randomly(std::span<uint8_t> bytes) {
  if (::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size())) return {};
  return Status::from_errno(errno, "making random bytes (getrandom)");
}

}  // namespace rcuda
