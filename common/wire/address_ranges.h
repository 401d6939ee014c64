// The addresses that the processes of a session agree upon, in the one number space of device and
// host pointers (docs/architecture.md: Addresses). Constants only.
//
// Device memory: window k is the k-th kWindowBytes from kWindowBase; each worker of a client has
// one to itself. Page-locked client memory lies in the host range, which every worker keeps free,
// so that it has the same address in client and worker and a kernel can use the host pointer. Both
// are clear of ordinary mappings, which grow down from 0x7fff'ffff'f000, of position-independent
// programs (0x55..., 0x56...) and of the shadow and the heap (from 0x6000'0000'0000 a little
// over 4 TiB) of AddressSanitizer, which the client's program may be built with.
//
// NVIDIA's stream-ordered pools lie elsewhere: the driver takes the lowest free addresses from
// kPoolBase for them, twice the device's memory for each. Worker k leaves the first k * kPoolBytes
// there alone, so that pools of several workers lie apart, too.
//
// ThreadSanitizer allows mappings in a few ranges only (compiler-rt: tsan_platform.h). What is
// built with it has its own, smaller ranges inside those, with every process of the session built
// alike.
#pragma once

#include <cstdint>

namespace rcuda::wire {

#if defined(__SANITIZE_THREAD__)
inline constexpr uint64_t kWindowBase = 0x7e80'0000'0000;
inline constexpr uint64_t kWindowBytes = 24ull << 30;
inline constexpr uint64_t kHostRangeBase = 0x5660'0000'0000;
inline constexpr uint64_t kHostRangeBytes = 64ull << 30;
inline constexpr uint64_t kPoolBytes = 0;  // softgpu's pools lie in the window
#else
inline constexpr uint64_t kWindowBase = 0x6500'0000'0000;
inline constexpr uint64_t kWindowBytes = 1ull << 40;
inline constexpr uint64_t kHostRangeBase = 0x5000'0000'0000;
inline constexpr uint64_t kHostRangeBytes = 1ull << 40;
inline constexpr uint64_t kPoolBytes = 4ull << 40;
#endif
inline constexpr uint32_t kWindowCount = 16;
inline constexpr uint64_t kPoolBase = 0x3'0000'0000;  // what lies below is the driver's own

}  // namespace rcuda::wire
