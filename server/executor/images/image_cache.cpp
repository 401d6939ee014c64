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
#include "common/base/unique_fd.h"

namespace rcuda::server {
namespace {

constexpr size_t kTrailingZeros = 8;
constexpr const char* kTemporaryPrefix = ".incoming-";

// Makes the directory and its parents. No other user may be able to write the directory itself.
Status prepare(const std::string& directory) {
  for (size_t slash = directory.find('/', 1); slash != std::string::npos;
       slash = directory.find('/', slash + 1)) {
    ::mkdir(directory.substr(0, slash).c_str(), 0755);
  }
  ::mkdir(directory.c_str(), 0700);
  struct stat status;
  if (::stat(directory.c_str(), &status) != 0) return Status::from_errno(errno, directory);
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 022) != 0) {
    return Status(Code::kInvalidArgument,
                  directory + " must be a directory that only this user can write (chmod 700)");
  }
  if (::access(directory.c_str(), W_OK) != 0) return Status::from_errno(errno, directory);
  return {};
}

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

ImageCache::ImageCache(std::string directory, uint64_t max_bytes)
    : directory_(std::move(directory)), max_bytes_(max_bytes) {
  if (directory_.empty()) return;
  if (Status status = prepare(directory_); !status.ok()) {
    RCUDA_WARN("module images are not kept between sessions: %s", status.message().c_str());
    directory_.clear();
  }
}

ImagePointer ImageCache::find(const Sha256& hash, uint64_t image_bytes) {
  if (directory_.empty()) return nullptr;
  const std::string path = directory_ + "/" + to_hex(hash);
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
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
  if (!directory_.empty() && bytes.size() <= max_bytes_) {
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
  const std::string temporary = directory_ + "/" + kTemporaryPrefix + std::to_string(::getpid()) +
                                "-" + std::to_string(counter.fetch_add(1));
  UniqueFd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return Status::from_errno(errno, temporary);
  constexpr std::byte kZeros[kTrailingZeros] = {};
  // Synced before it gets its name, so that a name stands for a whole image even after a power cut.
  const bool written = write_all(file.get(), bytes.data(), bytes.size()) &&
                       write_all(file.get(), kZeros, sizeof kZeros) && ::fsync(file.get()) == 0 &&
                       ::rename(temporary.c_str(), (directory_ + "/" + name).c_str()) == 0;
  if (written) return {};
  const Status status = Status::from_errno(errno, temporary);
  ::unlink(temporary.c_str());
  return status;
}

void ImageCache::evict() {
  struct File {
    timespec used;
    uint64_t bytes;
    std::string path;
  };
  std::vector<File> files;
  uint64_t total = 0;
  DIR* directory = ::opendir(directory_.c_str());
  if (!directory) return;
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  while (const dirent* item = ::readdir(directory)) {
    const std::string path = directory_ + "/" + item->d_name;
    struct stat status;
    if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    if (std::strncmp(item->d_name, kTemporaryPrefix, std::strlen(kTemporaryPrefix)) == 0) {
      // Left behind by a worker that was killed while it wrote.
      if (now.tv_sec - status.st_mtim.tv_sec > 3600) ::unlink(path.c_str());
      continue;
    }
    files.push_back({status.st_mtim, static_cast<uint64_t>(status.st_size), path});
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
    if (::unlink(file.path.c_str()) == 0) total -= file.bytes;
  }
}

}  // namespace rcuda::server
