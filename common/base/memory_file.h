// Memory files (memfd) that one process makes and others map.
//
// The kernel counts a memory file as a file: to make one larger than RLIMIT_FSIZE (ulimit -f)
// raises SIGXFSZ, which ends the program. A client with such a limit makes the file empty, and the
// peer that receives it gives it its size. Threads: any. Nothing blocks.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda {

// Whether this process may make files of this size.
bool may_make_files_of(uint64_t bytes);

// A memory file of `bytes`, which can be sealed; an empty one if this process may not make files of
// this size. None, with errno, if that fails.
UniqueFd make_memory_file(const char* name, uint64_t bytes);

bool has_size(int file, uint64_t bytes);

// For a file of a peer: gives an empty memory file its size. Leaves other files as they are.
// Errors: this process may not make files of this size either.
Status size_memory_file(int file, uint64_t bytes);

}  // namespace rcuda
