// What a descriptor of an exported allocation carries in place of the allocation
// (docs/architecture.md).
//
// The worker that exported it keeps the driver's descriptor, and hands it to whoever asks for it on
// a Unix socket of its own and knows the secret: so far as workers run on one host, any client's
// worker can import what another client exported, over whatever medium the clients are connected.
#pragma once

#include <cstdint>

namespace rcuda::wire {

struct AllocationToken {
  static constexpr uint64_t kMagic = 0x31'6c'6c'61'61'64'75'63;  // "cudaall1"
  uint64_t magic;
  uint32_t worker_pid;
  uint32_t reserved;
  uint8_t socket[16];  // part of the socket's abstract name, random
  uint8_t secret[16];
};
static_assert(sizeof(AllocationToken) == 48);

}  // namespace rcuda::wire
