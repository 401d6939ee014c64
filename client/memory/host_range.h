// Where page-locked client memory lies: a range of addresses that every worker keeps free, so that
// the memory has the same address in client and worker and a kernel can use the host pointer.
#pragma once

#include <cstdint>

namespace rcuda::client {

// Clear of ordinary mappings (which grow down from 0x7fff...), of the sanitizers' shadows, and of the
// workers' device windows (0x6000... upwards).
inline constexpr uint64_t kHostRangeBase = 0x5000'0000'0000;
inline constexpr uint64_t kHostRangeBytes = 0x0100'0000'0000;  // 1 TiB

}  // namespace rcuda::client
