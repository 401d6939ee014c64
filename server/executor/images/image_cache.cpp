#include "server/executor/images/image_cache.h"

#include <cstring>

#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "common/base/cache_folder.h"
#include "common/base/log.h"

namespace rcuda::server {
namespace {

constexpr size_t kTrailingZeros = 8;
constexpr std::byte kZeros[kTrailingZeros] = {};

ImagePointer in_memory(std::span<const std::byte> bytes) {
  const size_t mapped = bytes.size() + kTrailingZeros;
  void* memory =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  if (!bytes.empty()) std::memcpy(memory, bytes.data(), bytes.size());
  return std::make_shared<CachedImage>(memory, mapped, bytes.size(), false);
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

ImageCache::ImageCache(UniqueFd folder, uint64_t max_bytes)
    : files_(std::move(folder), max_bytes) {}

ImageCache::ImageCache(const std::string& directory, uint64_t max_bytes) {
  if (directory.empty()) return;
  Result<UniqueFd> folder = open_cache_directory(directory);
  if (folder.ok()) {
    files_ = FileCache(std::move(folder).value(), max_bytes);
  } else {
    RCUDA_WARN("module images are not kept between sessions: %s",
               folder.status().message().c_str());
  }
}

ImagePointer ImageCache::find(const Sha256& hash, uint64_t image_bytes) {
  const UniqueFd file = files_.open(to_hex(hash));
  if (!file) return nullptr;
  struct stat status;
  if (::fstat(file.get(), &status) != 0 ||
      static_cast<uint64_t>(status.st_size) != image_bytes + kTrailingZeros) {
    return nullptr;
  }
  const auto mapped = static_cast<size_t>(status.st_size);
  void* memory = ::mmap(nullptr, mapped, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  return std::make_shared<CachedImage>(memory, mapped, image_bytes, true);
}

Result<ImagePointer> ImageCache::insert(const Sha256& hash, std::span<const std::byte> bytes) {
  if (sha256(bytes) != hash) {
    return Status(Code::kInvalidArgument, "an image does not have the hash it was announced with");
  }
  if (files_.keeps_files() && bytes.size() <= files_.max_bytes()) {
    const Status status = files_.insert(to_hex(hash), {bytes, kZeros});
    if (status.ok()) {
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

}  // namespace rcuda::server
