// Shared-memory Links: the header of a window, and the first message of each side.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/transport/doorbell.h"
#include "common/transport/greeting.h"
#include "common/transport/link.h"

namespace rcuda::transport {

inline constexpr size_t kHeaderBytes = 4096;
inline constexpr uint64_t kShmMagic = 0x326d687361647563;  // "cudashm2"

// The page before the window, in the same file.
struct WindowHeader {
  DoorbellState doorbell;
  alignas(128) DoorbellState elsewhere;  // for puts outside of LinkOptions::answers
};
static_assert(sizeof(WindowHeader) <= kHeaderBytes);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

struct ShmHello {
  Greeting greeting;
  WindowPart answers;  // LinkOptions::answers of this side
};
static_assert(sizeof(ShmHello) == 40);

}  // namespace rcuda::transport
