// Memory files (memfd) that one process makes and others map.
//
// RLIMIT_FSIZE (ulimit -f) also limits memory files: a process that enlarges a file beyond the
// limit gets SIGXFSZ, which ends the program. A client with such a limit makes an empty file, and
// the peer that receives the file sets its size. Threads: any. Nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda {

// Whether this process may make files of this size.
bool may_make_files_of(uint64_t bytes);

// Makes a memory file of `bytes`, which can be sealed. The file is empty if this process may not
// make files of this size. On failure returns no descriptor and sets errno.
UniqueFd make_memory_file(const char* name, uint64_t bytes);

bool has_size(int file, uint64_t bytes);

// For a file of a peer: sets the size of an empty memory file. Leaves other files as they are.
// Errors: this process may not make files of this size either.
Status size_memory_file(int file, uint64_t bytes);

// Makes a memory file whose size no process can change any more, so no process can remove pages
// that another process has mapped. On failure returns no descriptor and sets errno.
UniqueFd make_sealed_memory(const char* name, uint64_t bytes);
// Whether `file` is a sealed memory file of this size.
bool is_sealed_memory(int file, uint64_t bytes);

struct Unmap {
  size_t bytes = 0;
  void operator()(void* memory) const;
};
template <typename T>
using Mapped = std::unique_ptr<T, Unmap>;

// Maps `bytes` of a file, shared, from `offset` on; null and errno if that fails.
Mapped<void> map_file(int file, uint64_t offset, size_t bytes, int protection);
template <typename T>
Mapped<T> map_file_as(int file, uint64_t offset, size_t bytes, int protection) {
  return {static_cast<T*>(map_file(file, offset, bytes, protection).release()), Unmap{bytes}};
}

}  // namespace rcuda
