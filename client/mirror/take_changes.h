// Takes over what the worker has changed in mirrored memory (mirror.h).
//
// Threads: any; the caller has `known` and `there` for itself. Nothing blocks or fails.
#pragma once

#include <cstddef>

namespace rcuda::client {

// Writes those bytes of `there` that differ from `known` to `here`, and no others: threads of the
// application may be writing these at the same moment, and nothing of that is lost. `here` is a
// multiple of 4. The changed bytes of an aligned word of 4 bytes are written at once, and those of
// one of 8 if `here` is a multiple of 8. Then `known` is as `there`. Returns whether any byte
// differs.
bool take_changes(std::byte* here, std::byte* known, const std::byte* there, size_t length);
// The same for processors without AVX-512, which have no store of chosen bytes.
bool take_changes_by_word(std::byte* here, std::byte* known, const std::byte* there, size_t length);

}  // namespace rcuda::client
