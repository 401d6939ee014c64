// Takes over what the worker has changed in mirrored memory (mirror.h).
//
// Threads: any; the caller has `known` and `there` for itself. Nothing blocks or fails.
#pragma once

#include <cstddef>

namespace rcuda::client {

// Writes those bytes of `there` that differ from `known` to `here`, and no others: threads of the
// application may be writing these at the same moment, and nothing of that is lost. Of an aligned
// word of up to 8 bytes, all changed bytes are written at once. Then `known` is as `there`. Returns
// whether any byte differs.
bool take_changes(std::byte* here, std::byte* known, const std::byte* there, size_t length);
// The same for processors without AVX-512, which have no store of chosen bytes.
bool take_changes_by_word(std::byte* here, std::byte* known, const std::byte* there, size_t length);

}  // namespace rcuda::client
