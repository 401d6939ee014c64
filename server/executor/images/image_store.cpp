#include "server/executor/images/image_store.h"

#include <cstring>
#include <new>

#include "common/base/log.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kMaxImageBytes = 2ull << 30;
constexpr uint64_t kMaxAssemblingBytes = 4ull << 30;

}  // namespace

CUresult ImageStore::query(const Sha256& hash, uint64_t bytes, bool* present) {
  *present = true;
  if (find(hash)) return CUDA_SUCCESS;
  if (ImagePointer image = cache_->find(hash, bytes)) {
    ready_[hash] = std::move(image);
    return CUDA_SUCCESS;
  }
  *present = false;
  if (assemblies_.contains(hash)) return CUDA_SUCCESS;
  if (bytes == 0 || bytes > kMaxImageBytes) return CUDA_ERROR_INVALID_IMAGE;
  if (bytes > kMaxAssemblingBytes - assembling_bytes_) return CUDA_ERROR_OUT_OF_MEMORY;
  Assembly assembly;
  try {
    assembly.memory.reset(new std::byte[bytes]);
    assembly.bytes = bytes;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  assemblies_.emplace(hash, std::move(assembly));
  assembling_bytes_ += bytes;
  return CUDA_SUCCESS;
}

CUresult ImageStore::add_chunk(const Sha256& hash, uint64_t offset,
                               std::span<const std::byte> bytes) {
  auto found = assemblies_.find(hash);
  // Chunks may be repeated, even after the image is complete.
  if (found == assemblies_.end()) return find(hash) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
  Assembly& assembly = found->second;
  if (offset > assembly.bytes || bytes.size() > assembly.bytes - offset) {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  if (bytes.empty() || !assembly.offsets.insert(offset).second) return CUDA_SUCCESS;
  std::memcpy(assembly.memory.get() + offset, bytes.data(), bytes.size());
  assembly.received += bytes.size();
  if (assembly.received < assembly.bytes) return CUDA_SUCCESS;
  Result<ImagePointer> image = cache_->insert(hash, {assembly.memory.get(), assembly.bytes});
  assembling_bytes_ -= assembly.bytes;
  assemblies_.erase(found);
  if (!image.ok()) {
    RCUDA_WARN("%s", image.status().message().c_str());
    return CUDA_ERROR_INVALID_IMAGE;
  }
  ready_[hash] = std::move(image).value();
  return CUDA_SUCCESS;
}

ImagePointer ImageStore::find(const Sha256& hash) const {
  auto found = ready_.find(hash);
  return found == ready_.end() ? nullptr : found->second;
}

void ImageStore::keep(wire::Kind kind, wire::ObjectId id, std::shared_ptr<Loaded> loaded) {
  loaded_[{kind, id}] = std::move(loaded);
}

void ImageStore::release(wire::Kind kind, wire::ObjectId id) { loaded_.erase({kind, id}); }

}  // namespace rcuda::server
