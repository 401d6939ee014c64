// Addresses that the processes of a session agree on. Device and host pointers share one number
// space (docs/architecture.md: Addresses). Constants only.
//
// Device memory: each worker of a client has one window of addresses, in one of kDeviceRanges. The
// worker chooses it when its session begins (server/worker/address_window.h). Page-locked client
// memory lies in the host range, which every worker keeps free. So it has the same address in
// client and worker, and a kernel can use the host pointer. The ranges avoid ordinary mappings,
// which grow down from 0x7fff'ffff'f000; position-independent programs (0x55..., 0x56...); and the
// heap of AddressSanitizer (4 TiB from 0x6000'0000'0000). Where a program has other mappings in a
// device range, the client says so in its Hello.
//
// ThreadSanitizer allows mappings in a few ranges only (compiler-rt: tsan_platform.h). A build with
// ThreadSanitizer has its own, smaller ranges inside those. All processes of a session must then be
// built with it.
#pragma once

#include <cstdint>

namespace rcuda::wire {

struct AddressSpan {
  uint64_t begin, end;
};

#if defined(__SANITIZE_THREAD__)
inline constexpr AddressSpan kDeviceRanges[] = {{0x7e80'0000'0000, 0x7ee0'0000'0000}};
inline constexpr uint64_t kHostRangeBase = 0x5660'0000'0000;
inline constexpr uint64_t kHostRangeBytes = 64ull << 30;
inline constexpr uint64_t kFenceBegin = kDeviceRanges[0].begin;
inline constexpr uint64_t kLeastWindowTimes = 0;
inline constexpr uint64_t kWindowOwnBytes = 8ull << 30;
inline constexpr uint64_t kSmallWindowBytes = 24ull << 30;
inline constexpr uint64_t kMostWindowTimes = 0;
#else
// The first is used first. Together they have 98 TiB.
inline constexpr AddressSpan kDeviceRanges[] = {{0x6500'0000'0000, 0x7000'0000'0000},
                                                {0x1100'0000'0000, 0x5000'0000'0000},
                                                {0x0200'0000'0000, 0x1100'0000'0000},
                                                {0x5700'0000'0000, 0x6000'0000'0000}};
inline constexpr uint64_t kHostRangeBase = 0x5000'0000'0000;
inline constexpr uint64_t kHostRangeBytes = 1ull << 40;
// A worker closes the addresses outside of its window from here on. Lower ones are the driver's
// own.
inline constexpr uint64_t kFenceBegin = 0x3'0000'0000;
// A window has at least kLeastWindowTimes the memory of the session's devices, and kWindowOwnBytes
// for what the worker itself maps there. That is room for all the memory and a pool or a
// reservation of twice its size. It has at most kMostWindowTimes the memory, or kSmallWindowBytes.
inline constexpr uint64_t kLeastWindowTimes = 3;
inline constexpr uint64_t kWindowOwnBytes = 16ull << 30;
inline constexpr uint64_t kSmallWindowBytes = 1ull << 40;
inline constexpr uint64_t kMostWindowTimes = 64;
#endif
inline constexpr uint64_t kWindowUnit = 1ull << 30;

// No session has more servers. Bounds what a client can make a worker remember and connect to.
inline constexpr uint32_t kMostServers = 256;

}  // namespace rcuda::wire
