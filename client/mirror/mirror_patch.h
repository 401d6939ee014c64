// Patches: what the application wrote into mirrored memory of its own (page-locked memory). A
// kernel may be writing beside it, so the worker writes these bytes and no others; and it writes
// them at once, beside all streams, as the host did.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <cuda.h>

#include "client/mirror/mirror_exchange.h"
#include "common/base/mutex.h"

namespace rcuda::client {

// Sends the marked bytes (common/wire/marked_bytes.h) of a run of whole blocks. `content`: all
// bytes of the run, as the application has them; a block that then has the same ones in the worker
// counts as unchanged. Any thread. Blocks for room in the command ring; errors are those of the
// session.
CUresult send_patch(const Mirror& mirror, uint64_t number, const Run& run, const std::byte* content,
                    const uint8_t* mask) RCUDA_REQUIRES(push_mutex);

// Notes before it is sent that both sides have the patch. Returns its number.
uint64_t note_patch(Mirror& mirror, const Run& run, const std::byte* content, const uint8_t* mask)
    RCUDA_REQUIRES(mirrors_mutex);
// Puts what a host function has changed into `lent`, for the worker to take back.
void return_changes(Mirror& mirror) RCUDA_REQUIRES(mirrors_mutex);
// Forgets what was sent and what the worker has by then. The client has all bytes of that answer.
void forget_confirmed(Mirror& mirror, const wire::MirrorState& state) RCUDA_REQUIRES(mirrors_mutex);
// Whether bytes of this state lack what is forgotten. The client has newer ones then.
bool is_outdated(const Mirror& mirror, const wire::MirrorState& state)
    RCUDA_REQUIRES(mirrors_mutex);
// As merge(), with bytes of the worker that may lack patches and loans that the client has sent:
// `state` names those that they contain. `there` is changed meanwhile. merge_lent() skips outdated
// bytes; merge_fetched() must not get them.
void merge_lent(Mirror& mirror, std::byte* there, const wire::MirrorState& state)
    RCUDA_REQUIRES(mirrors_mutex);
void merge_fetched(Mirror& mirror, std::byte* there, const std::vector<Run>& runs,
                   const wire::MirrorState& state) RCUDA_REQUIRES(mirrors_mutex);

}  // namespace rcuda::client
