// Addresses that the processes of a session agree on. Device and host pointers share one number
// space (docs/architecture.md: Addresses). Constants only.
//
// Device memory: each worker of a client has two ranges of addresses. The worker's driver starts in
// a base, a part of kBases. kBases has room for kBaseCount bases of the smallest size. When the
// worker gets its session, it also takes a window in one of kWindowRanges. The window's size
// follows from the session's devices (server/addresses/address_window.h).
//
// Page-locked client memory lies in the host range, which every worker keeps free. So such memory
// has the same address in client and worker, and a kernel can use the host pointer. (If the program
// has mappings in the host range, the client takes a part of kWindowRanges instead.)
//
// All these ranges avoid ordinary mappings, which grow down from 0x7fff'ffff'f000, and
// position-independent programs (0x5555'..., 0x56...). If a program has mappings in these ranges,
// such as AddressSanitizer's shadow in the lowest 16 TiB and its heap of 4 TiB from
// 0x6000'0000'0000, the client reports them in its Hello.
//
// ThreadSanitizer allows mappings in a few ranges only (compiler-rt: tsan_platform.h). A build with
// ThreadSanitizer has its own, smaller ranges, inside the allowed ranges. All processes of a
// session must then be built with ThreadSanitizer.
#pragma once

#include <cstdint>

#include "common/base/address_space.h"

namespace rcuda::wire {

#if defined(__SANITIZE_THREAD__)
inline constexpr AddressRange kBases = {0x7e80'0000'0000, 0x7ea0'0000'0000};
inline constexpr uint64_t kBaseBytes = 4ull << 30;
inline constexpr AddressRange kWindowRanges[] = {{0x7ea0'0000'0000, 0x7ee0'0000'0000}};
inline constexpr uint64_t kHostRangeBase = 0x5660'0000'0000;
inline constexpr uint64_t kHostRangeBytes = 64ull << 30;
inline constexpr uint64_t kFenceBegin = kBases.begin;
inline constexpr uint64_t kLeastWindowTimes = 0;
inline constexpr uint64_t kWindowOwnBytes = 8ull << 30;
inline constexpr uint64_t kSmallWindowBytes = 24ull << 30;
inline constexpr uint64_t kMostWindowTimes = 0;
#else
inline constexpr AddressRange kBases = {0x6500'0000'0000, 0x7500'0000'0000};
inline constexpr uint64_t kBaseBytes = 32ull << 30;
// 95 TiB together: room for eight windows of 11 TiB.
inline constexpr AddressRange kWindowRanges[] = {{0x0200'0000'0000, 0x5000'0000'0000},
                                                 {0x5700'0000'0000, 0x6400'0000'0000},
                                                 {0x5100'0000'0000, 0x5500'0000'0000}};
inline constexpr uint64_t kHostRangeBase = 0x5000'0000'0000;
inline constexpr uint64_t kHostRangeBytes = 1ull << 40;
// From this address on, a worker fences off the addresses outside of its base and its window. Lower
// addresses are the driver's own.
inline constexpr uint64_t kFenceBegin = 0x3'0000'0000;
// A window has at least kLeastWindowTimes the memory of the session's devices, and kWindowOwnBytes
// for the worker's own mappings. Such a window holds all the memory, and a pool or a reservation of
// twice the size of the memory. The upper limit of a window is kMostWindowTimes the memory, or
// kSmallWindowBytes if that is larger.
inline constexpr uint64_t kLeastWindowTimes = 3;
inline constexpr uint64_t kWindowOwnBytes = 16ull << 30;
inline constexpr uint64_t kSmallWindowBytes = 1ull << 40;
inline constexpr uint64_t kMostWindowTimes = 64;
#endif
inline constexpr uint64_t kWindowUnit = 1ull << 30;

inline constexpr uint32_t kBaseCount = (kBases.end - kBases.begin) / kBaseBytes;

// The most servers that one program may use. So a worker has at most kMostServers - 1 peers.
inline constexpr uint32_t kMostServers = 256;

}  // namespace rcuda::wire
