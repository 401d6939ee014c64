// Greeting: the first message of each side of a Link over the control socket, on every medium. The
// medium's own part follows.
//
// Plain values; any thread. Nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/status.h"
#include "common/transport/link.h"

namespace rcuda::transport {

struct Greeting {
  uint64_t magic = 0;  // names the medium and the version of its protocol
  uint64_t window_bytes = 0;
  uint32_t peer_timeout_ms = 0;  // this side expects a heartbeat within this time
  uint8_t streams = 0;           // for transfers; tcp: sockets, verbs: queue pairs, shm: 1
  uint8_t streams_are_set = 0;   // 1: a setting gives `streams`; 0: the medium does
  uint16_t retained_blocks = 0;  // tcp: LinkOptions::retained_bytes, divided by kRetainedBlock
};
inline constexpr size_t kRetainedBlock = 256u << 10;
static_assert(sizeof(Greeting) == 24);

// The number of streams is that of `options`, or `usual_streams` if `options` set none. It is at
// least 1 and at most `most_streams`.
Greeting make_greeting(uint64_t magic, const LinkOptions& options, size_t most_streams,
                       size_t usual_streams);

// Checks the peer's greeting. kProtocol: the peer does not speak `protocol` ("TCP").
Status check_greeting(const Greeting& peer, uint64_t magic, const char* protocol);

}  // namespace rcuda::transport
