// FileCache: files that can be recreated, by name, in one folder that several processes share.
//
// A file is written under a temporary name, synced and renamed, so a reader always finds it
// complete, also after a power cut. Nothing writes it afterwards. When the folder exceeds its
// bound, the least recently used files are removed. A file that is open or mapped in any process is
// neither removed nor replaced: its disk blocks would stay in use, but no longer count towards the
// bound. (On a file system without flock() or RENAME_NOREPLACE, a file in use may be removed or
// replaced.) The cache keeps the folder open, so a process can use it after switching to a user
// that cannot reach the path.
//
// Threads: any; an object has no state that changes. Blocking: open() and insert(), for the file
// system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda {

class FileCache {
 public:
  FileCache() = default;  // a cache that keeps no files
  FileCache(UniqueFd folder, uint64_t max_bytes);

  bool keeps_files() const { return static_cast<bool>(folder_); }
  uint64_t max_bytes() const { return max_bytes_; }
  // Opens the file for reading, which counts as a use. Returns an invalid descriptor if the file is
  // not there. The file is in use until the descriptor and the mappings made with it are closed.
  UniqueFd open(const std::string& name) const;
  // Writes the parts one after the other. Replaces a file of the same name unless that file is in
  // use. If the files in use leave no room for the new file, the new file is removed at once.
  Status insert(const std::string& name,
                std::initializer_list<std::span<const std::byte>> parts) const;

 private:
  Status name(const std::string& temporary, const std::string& name) const;
  bool remove_unused(const std::string& name) const;
  void evict() const;

  UniqueFd folder_;
  uint64_t max_bytes_ = 0;
};

// Opens a directory that belongs to the process's user and that no other user may write, because
// its files are trusted. Makes missing directories.
Result<UniqueFd> open_cache_directory(const std::string& directory);

}  // namespace rcuda
