#include "server/executor/images/image_cache.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cache_folder.h"
#include "common/base/log.h"

namespace rcuda::server {
namespace {

constexpr size_t kTrailingZeros = 8;
constexpr const char* kTemporaryPrefix = ".incoming-";

ImagePointer in_memory(std::span<const std::byte> bytes) {
  const size_t mapped = bytes.size() + kTrailingZeros;
  void* memory =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  if (!bytes.empty()) std::memcpy(memory, bytes.data(), bytes.size());
  return std::make_shared<CachedImage>(memory, mapped, bytes.size());
}

bool write_all(int fd, const void* data, size_t count) {
  const auto* at = static_cast<const char*>(data);
  while (count > 0) {
    const ssize_t written = ::write(fd, at, count);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += written;
    count -= static_cast<size_t>(written);
  }
  return true;
}

}  // namespace

Sha256 sha256(std::span<const std::byte> bytes) {
  Sha256 hash{};
  EVP_Digest(bytes.data(), bytes.size(), hash.data(), nullptr, EVP_sha256(), nullptr);
  return hash;
}

std::string to_hex(const Sha256& hash) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : hash) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

CachedImage::~CachedImage() { ::munmap(mapping_, mapped_bytes_); }

std::string default_image_directory() { return cache_folder(); }

Result<UniqueFd> open_image_directory(const std::string& directory) {
  for (size_t slash = directory.find('/', 1); slash != std::string::npos;
       slash = directory.find('/', slash + 1)) {
    ::mkdir(directory.substr(0, slash).c_str(), 0755);
  }
  ::mkdir(directory.c_str(), 0700);
  UniqueFd folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat status;
  if (!folder || ::fstat(folder.get(), &status) != 0) return Status::from_errno(errno, directory);
  if (status.st_uid != ::geteuid() || (status.st_mode & 022) != 0) {
    return Status(Code::kInvalidArgument,
                  directory + " must be a directory that only this user can write (chmod 700)");
  }
  if (::access(directory.c_str(), W_OK) != 0) return Status::from_errno(errno, directory);
  return folder;
}

ImageCache::ImageCache(UniqueFd folder, uint64_t max_bytes)
    : folder_(std::move(folder)), max_bytes_(max_bytes) {}

ImageCache::ImageCache(const std::string& directory, uint64_t max_bytes) : max_bytes_(max_bytes) {
  if (directory.empty()) return;
  Result<UniqueFd> folder = open_image_directory(directory);
  if (folder.ok()) {
    folder_ = std::move(folder).value();
  } else {
    RCUDA_WARN("module images are not kept between sessions: %s",
               folder.status().message().c_str());
  }
}

ImagePointer ImageCache::find(const Sha256& hash, uint64_t image_bytes) {
  if (!folder_) return nullptr;
  UniqueFd file(::openat(folder_.get(), to_hex(hash).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return nullptr;
  struct stat status;
  if (::fstat(file.get(), &status) != 0 ||
      static_cast<uint64_t>(status.st_size) != image_bytes + kTrailingZeros) {
    return nullptr;
  }
  const auto mapped = static_cast<size_t>(status.st_size);
  void* memory = ::mmap(nullptr, mapped, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  ::futimens(file.get(), nullptr);  // marks it as used now, for evict()
  return std::make_shared<CachedImage>(memory, mapped, image_bytes);
}

Result<ImagePointer> ImageCache::insert(const Sha256& hash, std::span<const std::byte> bytes) {
  if (sha256(bytes) != hash) {
    return Status(Code::kInvalidArgument, "an image does not have the hash it was announced with");
  }
  if (folder_ && bytes.size() <= max_bytes_) {
    Status status = write_file(to_hex(hash), bytes);
    if (status.ok()) {
      evict();
      if (ImagePointer image = find(hash, bytes.size())) return image;
    } else {
      RCUDA_WARN("an image of %zu bytes is kept for this session only: %s", bytes.size(),
                 status.message().c_str());
    }
  }
  ImagePointer image = in_memory(bytes);
  if (!image) return Status(Code::kOutOfMemory, "no memory for an image");
  return image;
}

Status ImageCache::write_file(const std::string& name, std::span<const std::byte> bytes) {
  static std::atomic<uint32_t> counter{0};
  const int folder = folder_.get();
  const std::string temporary =
      kTemporaryPrefix + std::to_string(::getpid()) + "-" + std::to_string(counter.fetch_add(1));
  UniqueFd file(::openat(folder, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return Status::from_errno(errno, temporary);
  constexpr std::byte kZeros[kTrailingZeros] = {};
  // Synced before it gets its name, so that a name stands for a whole image even after a power cut.
  const bool written = write_all(file.get(), bytes.data(), bytes.size()) &&
                       write_all(file.get(), kZeros, sizeof kZeros) && ::fsync(file.get()) == 0 &&
                       ::renameat(folder, temporary.c_str(), folder, name.c_str()) == 0;
  if (written) return {};
  const Status status = Status::from_errno(errno, temporary);
  ::unlinkat(folder, temporary.c_str(), 0);
  return status;
}

void ImageCache::evict() {
  struct File {
    timespec used;
    uint64_t bytes;
    std::string name;
  };
  std::vector<File> files;
  uint64_t total = 0;
  // Opened again, because a duplicate would share its position with other listings.
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
      // Left behind by a worker that was killed while it wrote.
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
    if (::unlinkat(folder_.get(), file.name.c_str(), 0) == 0) total -= file.bytes;
  }
}

}  // namespace rcuda::server
