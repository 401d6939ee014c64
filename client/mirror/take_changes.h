// Takes over the worker's changes of mirrored memory (mirror.h).
//
// Threads: any. No other thread may use `known` and `there` during the call. Nothing blocks or
// fails.
#pragma once

#include <cstddef>

namespace rcuda::client {

// Writes only those bytes of `there` to `here` that differ from `known`. Threads of the application
// may be writing the other bytes at the same time; their writes are not lost. `here` is aligned to
// 4 bytes. The changed bytes of an aligned 4-byte word are written in one store. If `here` is
// aligned to 8 bytes, this also holds for aligned 8-byte words. Afterwards `known` equals `there`.
// Returns whether any byte differed.
bool take_changes(std::byte* here, std::byte* known, const std::byte* there, size_t length);
// Like take_changes(), for processors without AVX-512, which have no masked byte store.
bool take_changes_by_word(std::byte* here, std::byte* known, const std::byte* there, size_t length);

}  // namespace rcuda::client
