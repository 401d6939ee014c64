// Addresses that the processes of a session agree on. Device and host pointers share one number
// space (docs/architecture.md: Addresses). Constants only.
//
// Device memory: window k is the k-th kWindowBytes from kWindowBase, and each worker of a client
// has one window. Page-locked client memory lies in the host range, which every worker keeps free.
// So it has the same address in client and worker, and a kernel can use the host pointer. Both
// ranges avoid ordinary mappings, which grow down from 0x7fff'ffff'f000; position-independent
// programs (0x55..., 0x56...); and the shadow and the heap of AddressSanitizer (a little over 4 TiB
// from 0x6000'0000'0000), because the client's program may be built with it.
//
// NVIDIA's stream-ordered pools lie elsewhere: for each pool the driver takes the lowest free
// addresses from kPoolBase, twice the size of the device's memory. Worker k leaves the first k *
// kPoolBytes of them unused, so pools of several workers do not overlap either.
//
// ThreadSanitizer allows mappings in a few ranges only (compiler-rt: tsan_platform.h). A build with
// ThreadSanitizer has its own, smaller ranges inside those. All processes of a session must then be
// built with it.
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
inline constexpr uint64_t kPoolBase = 0x3'0000'0000;  // lower addresses are the driver's own

}  // namespace rcuda::wire
