// Patches: what the application wrote into mirrored memory of its own (page-locked memory). A
// kernel may be writing beside it, so the worker writes these bytes and no others; and it writes
// them at once, beside all streams, as the host did.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda.h>

#include "client/process/mirror_exchange.h"

namespace rcuda::client {

// Sends the marked bytes (common/wire/marked_bytes.h) of these whole blocks. `content`: all bytes
// of the run, as the application has them; a block that has the same ones in the worker counts as
// unchanged. Any thread. Blocks for room in the command ring; errors are those of the session.
CUresult send_patch(const Mirror& mirror, const Run& run, const std::byte* content,
                    const uint8_t* mask);

}  // namespace rcuda::client
