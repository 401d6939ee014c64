// Files with secrets: only their owner may read or write them, and the owner is this process's
// effective user or root.
//
// The file itself is checked, after it is opened. The folder is not checked: a file that another
// user puts there belongs to that user and is refused. Writing is atomic: a reader finds the old
// file or the complete new file. Threads: any; processes may race. Blocking: for the file system.
// Errors name the file and the remedy: kNotFound if the file does not exist, kDenied if its owner
// or mode is wrong, kSystem if a system call fails.
#pragma once

#include <cstddef>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda::identity {

Result<UniqueFd> open_private_file(const std::string& path);
// Reads from the descriptor's position to the end of the file. A file larger than `most_bytes` is
// kInvalidArgument. `path` is for errors.
Result<std::string> read_to_end(int file, const std::string& path, size_t most_bytes);
Result<std::string> read_private_file(const std::string& path, size_t most_bytes);

// Makes the file, or replaces it. kLater: does not wait for the disk, so the earlier file may be
// back after a power failure.
enum class OnDisk { kNow, kLater };
Status replace_private_file(const std::string& path, const std::string& text,
                            OnDisk when = OnDisk::kNow);
// Makes the file. Returns false if it exists already.
Result<bool> create_private_file(const std::string& path, const std::string& text);

// Makes the missing folders above `path`. If this process runs as root, other users may read them
// (mode 0755), otherwise not (0700).
Status make_folders_above(const std::string& path);
// Returns an error if the file or a missing folder above it cannot be made. Makes nothing.
Status check_can_make(const std::string& path);

}  // namespace rcuda::identity
