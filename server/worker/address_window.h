// The choice of a worker's window of addresses, when its session begins.
//
// A worker is started before anybody knows its session. It chooses its window when it gets the
// session, and closes all other addresses only then (address_fence.h). So every idle worker suits
// every session. A window is a fair share of the free addresses, between a least and a most size
// that follow the memory of the session's devices (common/wire/address_ranges.h).
//
// Pure functions; any thread. Nothing blocks. Errors: as the function says.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/address_space.h"
#include "common/base/status.h"
#include "common/wire/handshake.h"

namespace rcuda::server {

struct WindowRequest {
  uint64_t memory_bytes = 0;       // of the session's devices on this worker
  uint32_t servers_left = 1;       // of the session: those without a window, this one included
  std::vector<AddressRange> used;  // by this process, the client and its other workers; any order
};

// `hello` comes from the client; its ranges are limited to the 47 bits of user space.
WindowRequest window_request(const wire::Hello& hello, uint64_t memory_bytes,
                             std::vector<AddressRange> own_mappings);

// kUnavailable if the least window does not fit; the text says what fits and the remedy.
Result<wire::AddressWindow> choose_window(WindowRequest request);

}  // namespace rcuda::server
