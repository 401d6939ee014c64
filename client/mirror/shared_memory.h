// New memory that sessions may expose to their workers.
//
// The memory is a memory file, with two exceptions if this process may not make files of this size
// (ulimit -f; common/base/memory_file.h). Memory that no worker maps is then anonymous. For memory
// that a worker maps, the file stays empty until a worker has received it and set its size.
// The memory must not be touched before it is exposed.
// Threads: any. Blocking: only is_usable(), for up to 10 s.
#pragma once

#include <cstddef>

#include "common/base/unique_fd.h"

namespace rcuda::client {

// Maps `bytes`, whole pages, at `wanted`, where nothing may be mapped (null: anywhere).
// `workers_map`: whether a worker maps the pages. Sets *backing to the descriptor for
// Link::expose(), or to none. Returns null on failure.
void* map_shared(const char* name, void* wanted, size_t bytes, bool workers_map, UniqueFd* backing);

// Waits until a worker has given an empty file its size. Returns whether the memory may be touched.
// Call it after the memory was exposed.
bool is_usable(const UniqueFd& backing, size_t bytes);

}  // namespace rcuda::client
