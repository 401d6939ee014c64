// Arena: device memory, as pages of one sparse memory file that are allocated in blocks.
//
// Device memory is backed by a file so that another process can map it (IPC handles, exported
// pools). The file is far larger than any device, and pages are committed only when they are
// touched, so the arena never runs out of file offsets. The file does not limit a device's memory:
// callers charge the device's account (Device::charge()). Blocks of up to 1 MB share chunks of 2
// MB; larger blocks have their own mapping. The kernel chooses every address, so a process that has
// fenced its address space gets only addresses that the fence leaves free. Any thread; one mutex
// per arena. allocate() returns nullopt if the address space is exhausted or the file cannot be
// made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/base/unique_fd.h"
#include "softgpu/exec/round_up.h"

namespace softgpu::driver {

inline constexpr size_t kPageBytes = 4096;
inline constexpr size_t kBlockGranularity = 512;
// Granularity of the VMM family, as on an H200.
inline constexpr size_t kPhysicalGranularity = size_t{2} << 20;

// Size of the data in an arena's file, and in the file of an imported pool.
inline constexpr uint64_t kArenaFileBytes = uint64_t{1} << 46;

using exec::round_up;

// Allocates ranges of offsets from 0 to `size`, first-fit. Merges adjacent free ranges.
class FreeRanges {
 public:
  explicit FreeRanges(uint64_t size) : free_{{0, size}} {}
  std::optional<uint64_t> take(uint64_t bytes, uint64_t align);
  void give_back(uint64_t offset, uint64_t bytes);
  bool whole(uint64_t size) const { return free_.size() == 1 && free_.begin()->second == size; }

 private:
  std::map<uint64_t, uint64_t> free_;  // offset to length
};

class Arena {
 public:
  struct Block {
    uint64_t address = 0;
    uint64_t file_offset = 0;
    size_t bytes = 0;  // rounded up to kBlockGranularity
  };

  // `file`: a memory file, such as that of an imported pool; the arena owns it. Without a file, the
  // arena makes one when it first needs it. `name`: the file's name in /proc.
  explicit Arena(std::string name, rcuda::UniqueFd file = {});
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::optional<Block> allocate(size_t bytes);
  // The block must come from allocate(). A block of more than 1 MB is unmapped, and its pages
  // return to the system. A smaller block becomes free in its chunk; one empty chunk is kept,
  // further empty chunks are unmapped.
  void release(const Block& block);
  // A range of the file without a mapping, for memory that the application maps at its own
  // addresses.
  std::optional<uint64_t> take_pages(size_t bytes);
  void give_back_pages(uint64_t file_offset, size_t bytes);
  // The memory file; -1 if it cannot be made.
  int file();

 private:
  struct Chunk {
    uint64_t address = 0;
    uint64_t file_offset = 0;
    FreeRanges free;
  };
  int file_locked();
  std::optional<Block> map_locked(size_t bytes);
  void unmap_locked(uint64_t address, uint64_t file_offset, size_t bytes);
  void give_back_locked(uint64_t file_offset, size_t bytes);

  const std::string name_;
  std::mutex mutex_;
  rcuda::UniqueFd file_;
  FreeRanges offsets_;
  std::map<uint64_t, Chunk> chunks_;  // by address
  uint64_t spare_chunk_ = 0;          // an empty chunk kept for the next small block
};

// Moves the memory of devices into files with other names (device_file_name()), as if it were on
// other GPUs. `renamed` maps present names to new names. An arena that has no file yet makes its
// file with the new name. The caller has unmapped all blocks. Descriptors of the files stay valid.
// Returns false if the system lacks memory.
bool rename_arena_files(const std::map<std::string, std::string>& renamed);

// Returns the file with this inode (as /proc/self/maps shows it) if an arena owns it, otherwise -1.
// The file is open as long as the arena exists.
int arena_file_of(uint64_t inode);

}  // namespace softgpu::driver
