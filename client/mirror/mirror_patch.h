// Patches: the application's writes to mirrored page-locked memory. A kernel may be writing to the
// same memory, so the worker writes only the bytes that the application has changed. It writes them
// at once, outside of all streams, as the host did.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <cuda.h>

#include "client/mirror/mirror_exchange.h"
#include "common/base/mutex.h"

namespace rcuda::client {

// Sends the marked bytes (common/wire/marked_bytes.h) of a run of whole blocks. `content`: all
// bytes of the run in the application's memory. If a block in the worker then equals `content`, it
// counts as unchanged by the GPU. Any thread. Blocks for room in the command ring; errors are those
// of the session.
CUresult send_patch(const Mirror& mirror, uint64_t number, const Run& run, const std::byte* content,
                    const uint8_t* mask) RCUDA_REQUIRES(push_mutex);

// Records in `known` and `recent`, before the patch is sent, that both sides have its bytes.
// Returns the number of the patch.
uint64_t note_patch(Mirror& mirror, const Run& run, const std::byte* content, const uint8_t* mask)
    RCUDA_REQUIRES(mirrors_mutex);
// Puts the changes of a host function into `lent`, from which the worker takes them over.
void return_changes(Mirror& mirror) RCUDA_REQUIRES(mirrors_mutex);
// Drops the sent bytes that `state` contains. `state`: from an answer whose bytes the client has
// merged completely.
void forget_confirmed(Mirror& mirror, const wire::MirrorState& state) RCUDA_REQUIRES(mirrors_mutex);
// Whether the client must not merge worker bytes with this state: they lack sent bytes that
// forget_confirmed() has dropped, so the client's bytes are newer and merging would undo them.
bool is_outdated(const Mirror& mirror, const wire::MirrorState& state)
    RCUDA_REQUIRES(mirrors_mutex);
// Like merge(), for bytes of the worker that may lack patches and loans that the client has sent.
// `state` names the patches and the loan that the bytes contain. merge_fetched() changes `there`
// and must not get outdated bytes (is_outdated()). merge_lent() restores `there` and skips outdated
// bytes.
void merge_lent(Mirror& mirror, std::byte* there, const wire::MirrorState& state)
    RCUDA_REQUIRES(mirrors_mutex);
void merge_fetched(Mirror& mirror, std::byte* there, const std::vector<Run>& runs,
                   const wire::MirrorState& state) RCUDA_REQUIRES(mirrors_mutex);

}  // namespace rcuda::client
