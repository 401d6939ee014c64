#include "server/executor/images/image_cache.h"

#include <cstring>
#include <utility>

#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "common/identity/encoding.h"

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
  Mapped<std::byte> owner(static_cast<std::byte*>(memory), Unmap{mapped});
  return std::make_shared<CachedImage>(CachedImage{std::move(owner), bytes.size(), false});
}

}  // namespace

Sha256 sha256(std::span<const std::byte> bytes) {
  Sha256 hash{};
  EVP_Digest(bytes.data(), bytes.size(), hash.data(), nullptr, EVP_sha256(), nullptr);
  return hash;
}

ImagePointer ImageCache::find(const Sha256& hash, uint64_t image_bytes) {
  const UniqueFd file = files_.open(identity::to_hex(hash));
  if (!file) return nullptr;
  struct stat status;
  if (::fstat(file.get(), &status) != 0 ||
      static_cast<uint64_t>(status.st_size) != image_bytes + kTrailingZeros) {
    return nullptr;
  }
  const auto mapped = static_cast<size_t>(status.st_size);
  auto memory = map_file_as<std::byte>(file.get(), 0, mapped, PROT_READ);
  if (!memory) return nullptr;
  return std::make_shared<CachedImage>(CachedImage{std::move(memory), image_bytes, true});
}

Result<ImagePointer> ImageCache::insert(const Sha256& hash, std::span<const std::byte> bytes) {
  if (sha256(bytes) != hash) {
    return Status(Code::kInvalidArgument,
                  "an image does not have the SHA-256 that the client announced");
  }
  if (files_.keeps_files() && bytes.size() <= files_.max_bytes()) {
    const Status status = files_.insert(identity::to_hex(hash), {bytes, kZeros});
    if (status.ok()) {
      if (ImagePointer image = find(hash, bytes.size())) return image;
    } else {
      RCUDA_WARN("an image of %s is kept for this session only: %s",
                 bytes_text(bytes.size()).c_str(), status.message().c_str());
    }
  }
  ImagePointer image = in_memory(bytes);
  if (!image) {
    return Status(Code::kOutOfMemory, "no memory for an image of " + bytes_text(bytes.size()));
  }
  return image;
}

}  // namespace rcuda::server
