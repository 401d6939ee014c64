#include "softgpu/driver/arena.h"

#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "common/base/log.h"

namespace softgpu::driver {
namespace {

constexpr size_t kChunkBytes = size_t{2} << 20;
constexpr size_t kLargestShared = kChunkBytes / 2;

// The memory files of this process's arenas.
struct Files {
  std::mutex mutex;
  std::map<uint64_t, int> by_inode;
  std::map<int, std::string> own;              // Arena::name_ of each file, by its descriptor
  std::map<std::string, std::string> renamed;  // present names of files, by Arena::name_
};

Files& files() {
  static auto* instance = new Files;
  return *instance;
}

void add_file(int file) {  // registers its inode
  struct stat status {};
  if (::fstat(file, &status) != 0) return;
  std::lock_guard lock(files().mutex);
  files().by_inode[status.st_ino] = file;
}

void remove_file(int file) {
  std::lock_guard lock(files().mutex);
  std::erase_if(files().by_inode, [&](const auto& entry) { return entry.second == file; });
  files().own.erase(file);
}

bool copy_contents(int from, int to) {
  const auto end = static_cast<off_t>(kArenaFileBytes);
  for (off_t at = ::lseek(from, 0, SEEK_DATA); at >= 0 && at < end;) {
    const off_t hole = ::lseek(from, at, SEEK_HOLE);
    off_t source = at, target = at;
    while (source < hole) {
      const auto bytes = static_cast<size_t>(hole - source);
      if (::copy_file_range(from, &source, to, &target, bytes, 0) <= 0) return false;
    }
    at = ::lseek(from, hole, SEEK_DATA);
  }
  return true;
}

rcuda::UniqueFd make_file(const std::string& name) {
  rcuda::UniqueFd made(::memfd_create(name.c_str(), MFD_CLOEXEC));
  if (made && ::ftruncate(made.get(), static_cast<off_t>(kArenaFileBytes)) != 0) made.reset();
  return made;
}

}  // namespace

bool rename_arena_files(const std::map<std::string, std::string>& renamed) {
  const auto now_of = [](const std::string& name) {
    const auto found = files().renamed.find(name);
    return found == files().renamed.end() ? name : found->second;
  };
  std::map<uint64_t, int> by_inode;
  std::lock_guard lock(files().mutex);
  std::map<std::string, std::string> all;
  for (const auto& [name, other] : renamed) {
    const auto found = renamed.find(now_of(name));
    all[name] = found == renamed.end() ? now_of(name) : found->second;
  }
  std::vector<std::pair<int, rcuda::UniqueFd>> copies;  // all are made before a file is replaced
  for (const auto& [file, name] : files().own) {
    rcuda::UniqueFd made = make_file(all.contains(name) ? all[name] : name);
    if (!made || !copy_contents(file, made.get())) return false;
    copies.emplace_back(file, std::move(made));
  }
  for (const auto& [file, made] : copies) {
    if (::dup3(made.get(), file, O_CLOEXEC) < 0) return false;
  }
  files().renamed = std::move(all);
  for (const auto& [inode, file] : files().by_inode) {
    struct stat status {};
    if (::fstat(file, &status) == 0) by_inode[status.st_ino] = file;
  }
  files().by_inode = std::move(by_inode);
  return true;
}

int arena_file_of(uint64_t inode) {
  std::lock_guard lock(files().mutex);
  const auto found = files().by_inode.find(inode);
  return found == files().by_inode.end() ? -1 : found->second;
}

std::optional<uint64_t> FreeRanges::take(uint64_t bytes, uint64_t align) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const uint64_t begin = it->first, end = begin + it->second;
    const uint64_t offset = round_up(begin, align);
    if (offset > end || end - offset < bytes) continue;
    free_.erase(it);
    if (offset > begin) free_.emplace(begin, offset - begin);
    if (end > offset + bytes) free_.emplace(offset + bytes, end - offset - bytes);
    return offset;
  }
  return std::nullopt;
}

void FreeRanges::give_back(uint64_t offset, uint64_t bytes) {
  auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      free_.erase(previous);
    }
  }
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    free_.erase(next);
  }
  free_.emplace(offset, bytes);
}

Arena::Arena(std::string name, rcuda::UniqueFd file)
    : name_(std::move(name)), file_(std::move(file)), offsets_(kArenaFileBytes) {
  if (file_) add_file(file_.get());
}

Arena::~Arena() {
  if (file_) remove_file(file_.get());
  for (const auto& [address, chunk] : chunks_) {
    ::munmap(reinterpret_cast<void*>(address), kChunkBytes);
  }
}

int Arena::file() {
  std::lock_guard lock(mutex_);
  return file_locked();
}

int Arena::file_locked() {
  if (file_) return file_.get();
  std::string name = name_;
  {
    std::lock_guard lock(files().mutex);
    const auto renamed = files().renamed.find(name_);
    if (renamed != files().renamed.end()) name = renamed->second;
  }
  rcuda::UniqueFd made = make_file(name);
  if (!made) {
    RCUDA_ERROR("cannot make the file (memfd) of a device's memory: %m");
    return -1;
  }
  file_ = std::move(made);
  add_file(file_.get());
  std::lock_guard lock(files().mutex);
  files().own[file_.get()] = name_;
  return file_.get();
}

std::optional<Arena::Block> Arena::map_locked(size_t bytes) {
  const int file = file_locked();
  if (file < 0) return std::nullopt;
  std::optional<uint64_t> offset = offsets_.take(bytes, kPageBytes);
  if (!offset) return std::nullopt;
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file,
                        static_cast<off_t>(*offset));
  if (mapped == MAP_FAILED) {
    offsets_.give_back(*offset, bytes);
    return std::nullopt;
  }
  return Block{reinterpret_cast<uint64_t>(mapped), *offset, bytes};
}

std::optional<uint64_t> Arena::take_pages(size_t bytes) {
  std::lock_guard lock(mutex_);
  if (file_locked() < 0) return std::nullopt;
  return offsets_.take(bytes, kPageBytes);
}

void Arena::give_back_pages(uint64_t file_offset, size_t bytes) {
  std::lock_guard lock(mutex_);
  give_back_locked(file_offset, bytes);
}

void Arena::unmap_locked(uint64_t address, uint64_t file_offset, size_t bytes) {
  ::munmap(reinterpret_cast<void*>(address), bytes);
  give_back_locked(file_offset, bytes);
}

void Arena::give_back_locked(uint64_t file_offset, size_t bytes) {
  // After this, a process that still has the pages mapped through an IPC handle reads zeros. For a
  // use after free, that is better than a fault.
  ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(file_offset), static_cast<off_t>(bytes));
  offsets_.give_back(file_offset, bytes);
}

std::optional<Arena::Block> Arena::allocate(size_t bytes) {
  const size_t rounded = round_up(bytes, kBlockGranularity);
  std::lock_guard lock(mutex_);
  if (rounded > kLargestShared) {
    std::optional<Block> block = map_locked(round_up(rounded, kPageBytes));
    if (block) block->bytes = rounded;
    return block;
  }
  for (auto& [address, chunk] : chunks_) {
    if (std::optional<uint64_t> offset = chunk.free.take(rounded, kBlockGranularity)) {
      if (address == spare_chunk_) spare_chunk_ = 0;
      return Block{address + *offset, chunk.file_offset + *offset, rounded};
    }
  }
  std::optional<Block> mapped = map_locked(kChunkBytes);
  if (!mapped) return std::nullopt;
  Chunk chunk{mapped->address, mapped->file_offset, FreeRanges(kChunkBytes)};
  chunk.free.take(rounded, kBlockGranularity);
  chunks_.emplace(mapped->address, std::move(chunk));
  return Block{mapped->address, mapped->file_offset, rounded};
}

void Arena::release(const Block& block) {
  std::lock_guard lock(mutex_);
  if (block.bytes > kLargestShared) {
    unmap_locked(block.address, block.file_offset, round_up(block.bytes, kPageBytes));
    return;
  }
  auto it = std::prev(chunks_.upper_bound(block.address));
  Chunk& chunk = it->second;
  chunk.free.give_back(block.address - it->first, block.bytes);
  if (!chunk.free.whole(kChunkBytes)) return;
  if (spare_chunk_ == 0) {
    spare_chunk_ = it->first;
    return;
  }
  if (spare_chunk_ == it->first) return;
  unmap_locked(it->first, chunk.file_offset, kChunkBytes);
  chunks_.erase(it);
}

}  // namespace softgpu::driver
