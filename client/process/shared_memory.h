// New memory that sessions may expose to their workers.
//
// Threads: any. Only is_usable() blocks, until a worker has received the file. The pages have a descriptor only if a worker maps them: as a rule
// they are a memory file. With a limit on files (ulimit -f) that is too small, the file is empty
// until a worker has received it (common/base/memory_file.h), so the memory must not be touched
// before it is exposed; and memory that no worker maps is anonymous.
#pragma once

#include <cstddef>

#include "common/base/unique_fd.h"

namespace rcuda::client {

// Maps `bytes`, whole pages, at `wanted`, where nothing may be mapped (null: anywhere).
// `workers_map`: whether a worker maps the pages. Sets *backing to the descriptor for
// Link::expose(), or to none. Returns null if that fails.
void* map_shared(const char* name, void* wanted, size_t bytes, bool workers_map, UniqueFd* backing);

// After it was exposed: whether the memory may be touched.
bool is_usable(const UniqueFd& backing, size_t bytes);

}  // namespace rcuda::client
