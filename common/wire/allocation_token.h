// The content of an exported allocation's descriptor, in place of the allocation itself
// (docs/architecture.md).
//
// The exporting worker keeps the driver's descriptor. It hands the descriptor to any process that
// asks for it on the worker's Unix socket and knows the secret. So among workers of one host, any
// client's worker can import what another client has exported, whatever media the clients use.
#pragma once

#include <cstdint>

namespace rcuda::wire {

struct AllocationToken {
  static constexpr uint64_t kMagic = 0x31'6c'6c'61'61'64'75'63;  // "cudaall1"
  uint64_t magic;
  uint32_t worker_pid;
  uint32_t reserved;
  uint8_t socket[16];  // random part of the socket's abstract name
  uint8_t secret[16];
};
static_assert(sizeof(AllocationToken) == 48);

}  // namespace rcuda::wire
