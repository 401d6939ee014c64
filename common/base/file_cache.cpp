#include "common/base/file_cache.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <random>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file_io.h"

namespace rcuda {
namespace {

constexpr const char* kTemporaryPrefix = ".incoming-";

uint64_t random_number() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

Result<UniqueFd> open_cache_directory(const std::string& directory) {
  for (size_t slash = directory.find('/', 1); slash != std::string::npos;
       slash = directory.find('/', slash + 1)) {
    ::mkdir(directory.substr(0, slash).c_str(), 0755);
  }
  ::mkdir(directory.c_str(), 0700);
  UniqueFd folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat status;
  if (!folder || ::fstat(folder.get(), &status) != 0) {
    return Status::from_errno(errno, "cannot open the cache folder " + directory);
  }
  if (status.st_uid != ::geteuid() || (status.st_mode & 022) != 0) {
    return Status(Code::kInvalidArgument,
                  "the cache folder " + directory +
                      " must belong to this user, and other users must not be able to write to it "
                      "(chmod 700)");
  }
  if (::access(directory.c_str(), W_OK) != 0) {
    return Status::from_errno(errno, "cannot write to the cache folder " + directory);
  }
  return folder;
}

FileCache::FileCache(UniqueFd folder, uint64_t max_bytes)
    : folder_(std::move(folder)), max_bytes_(max_bytes) {}

UniqueFd FileCache::open(const std::string& name) const {
  UniqueFd file;
  if (!folder_) return file;
  file = UniqueFd(::openat(folder_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return file;
  // The shared lock marks the file as in use. Mappings keep the file open after close(), and with
  // it the lock. A file without links was removed by remove_unused() before the lock was taken.
  struct stat status;
  const bool locked = ::flock(file.get(), LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  if (!locked || ::fstat(file.get(), &status) != 0 || status.st_nlink == 0) return {};
  ::futimens(file.get(), nullptr);  // marks it as used now, for evict()
  return file;
}

// Removes the file, unless it is in use.
bool FileCache::remove_unused(const std::string& name) const {
  const UniqueFd file(
      ::openat(folder_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file && ::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  return ::unlinkat(folder_.get(), name.c_str(), 0) == 0;
}

Status FileCache::name(const std::string& temporary, const std::string& name) const {
  const int folder = folder_.get();
  int error = 0;
  for (int attempt = 0; attempt < 3; ++attempt) {
    error = 0;
    if (::renameat2(folder, temporary.c_str(), folder, name.c_str(), RENAME_NOREPLACE) == 0) break;
    error = errno;
    if (error == EEXIST && !remove_unused(name)) {
      // Keeps the old file, because processes use it.
      ::unlinkat(folder, temporary.c_str(), 0);
      return {};
    }
    if (error == EINVAL) {  // no RENAME_NOREPLACE in this file system
      error = ::renameat(folder, temporary.c_str(), folder, name.c_str()) == 0 ? 0 : errno;
    }
    if (error != EEXIST) break;
  }
  return error == 0 ? Status()
                    : Status::from_errno(error, "cannot rename the cache file to " + name);
}

Status FileCache::insert(const std::string& name,
                         std::initializer_list<std::span<const std::byte>> parts) const {
  // Random, not the process id: processes on other hosts or in containers may share this folder and
  // have the same id.
  const std::string temporary = kTemporaryPrefix + std::to_string(random_number());
  const UniqueFd file(
      ::openat(folder_.get(), temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return Status::from_errno(errno, "cannot make the cache file " + temporary);
  // Synced before it gets its name: a file with this name is complete even after a power cut.
  const bool written =
      std::all_of(parts.begin(), parts.end(),
                  [&](std::span<const std::byte> part) { return write_all(file.get(), part); });
  Status status;
  if (!written || ::fsync(file.get()) != 0) {
    status = Status::from_errno(errno, "cannot write the cache file " + name);
  } else {
    status = this->name(temporary, name);
  }
  if (!status.ok()) {
    ::unlinkat(folder_.get(), temporary.c_str(), 0);
    return status;
  }
  evict();
  return {};
}

void FileCache::evict() const {
  struct File {
    timespec used;
    uint64_t bytes;
    std::string name;
  };
  std::vector<File> files;
  uint64_t total = 0;
  // Opened again, because a duplicated descriptor would share its read position with other
  // listings.
  UniqueFd listed(::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR* directory = listed ? ::fdopendir(listed.get()) : nullptr;
  if (!directory) return;
  (void)listed.release();  // closed by closedir()
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  while (const dirent* item = ::readdir(directory)) {
    struct stat status;
    if (::fstatat(folder_.get(), item->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(status.st_mode)) {
      continue;
    }
    if (std::strncmp(item->d_name, kTemporaryPrefix, std::strlen(kTemporaryPrefix)) == 0) {
      // A process that was killed during a write has left the file.
      if (now.tv_sec - status.st_mtim.tv_sec > 3600) ::unlinkat(folder_.get(), item->d_name, 0);
      continue;
    }
    files.push_back({status.st_mtim, static_cast<uint64_t>(status.st_size), item->d_name});
    total += files.back().bytes;
  }
  ::closedir(directory);
  if (total <= max_bytes_) return;
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) {
    return a.used.tv_sec != b.used.tv_sec ? a.used.tv_sec < b.used.tv_sec
                                          : a.used.tv_nsec < b.used.tv_nsec;
  });
  for (const File& file : files) {
    if (total <= max_bytes_) break;
    if (remove_unused(file.name)) total -= file.bytes;
  }
}

}  // namespace rcuda
