// Patches: what the application wrote into mirrored memory of its own (page-locked memory). A
// kernel may be writing beside it, so the worker writes these bytes and no others; and it writes
// them at once, beside all streams, as the host did.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <cuda.h>

#include "client/process/mirror_exchange.h"

namespace rcuda::client {

// Sends the marked bytes (common/wire/marked_bytes.h) of a run of whole blocks. `content`: all
// bytes of the run, as the application has them; a block that then has the same ones in the worker
// counts as unchanged. Any thread, with push_mutex held. Blocks for room in the command ring;
// errors are those of the session.
CUresult send_patch(Mirror& mirror, const Run& run, const std::byte* content, const uint8_t* mask);
// Notes that it was sent. mirrors_mutex is held.
void note_patch(Mirror& mirror, const Run& run, const uint8_t* mask);
// `there`: the worker's bytes of the whole mirror after the patch of this number. Returns them with
// all that was sent later; nothing if nothing was. Forgets earlier patches. mirrors_mutex is held.
std::vector<std::byte> with_later_patches(Mirror& mirror, const std::byte* there, uint64_t number);

}  // namespace rcuda::client
