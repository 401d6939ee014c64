#include "server/executor/images/image_store.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "common/base/log.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kMaxImageBytes = 2ull << 30;
constexpr uint64_t kMaxUnloadedBytes = 4ull << 30;

}  // namespace

CUresult ImageStore::query(const Sha256& hash, uint64_t bytes, bool* present) {
  *present = true;
  if (const auto known = ready_.find(hash); known != ready_.end()) {
    Ready& ready = known->second;
    if (std::exchange(ready.last_use, 0) != 0 && !ready.image->has_file) {
      unloaded_bytes_ += ready.image->bytes().size();
    }
    return CUDA_SUCCESS;
  }
  if (ImagePointer image = cache_->find(hash, bytes)) {
    ready_[hash].image = std::move(image);
    return CUDA_SUCCESS;
  }
  *present = false;
  if (assemblies_.contains(hash)) return CUDA_SUCCESS;
  if (bytes == 0 || bytes > kMaxImageBytes) return CUDA_ERROR_INVALID_IMAGE;
  if (bytes > kMaxUnloadedBytes - std::min(unloaded_bytes_, kMaxUnloadedBytes))
    return CUDA_ERROR_OUT_OF_MEMORY;
  Assembly assembly;
  try {
    assembly.memory.reset(new std::byte[bytes]);
    assembly.bytes = bytes;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  assemblies_.emplace(hash, std::move(assembly));
  unloaded_bytes_ += bytes;
  return CUDA_SUCCESS;
}

CUresult ImageStore::add_chunk(const Sha256& hash, uint64_t offset,
                               std::span<const std::byte> bytes) {
  auto found = assemblies_.find(hash);
  // Chunks may be repeated, even after the image is complete.
  if (found == assemblies_.end()) {
    return ready_.contains(hash) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
  }
  Assembly& assembly = found->second;
  if (offset > assembly.bytes || bytes.size() > assembly.bytes - offset) {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  if (bytes.empty() || !assembly.offsets.insert(offset).second) return CUDA_SUCCESS;
  std::memcpy(assembly.memory.get() + offset, bytes.data(), bytes.size());
  assembly.received += bytes.size();
  if (assembly.received < assembly.bytes) return CUDA_SUCCESS;
  Result<ImagePointer> image = cache_->insert(hash, {assembly.memory.get(), assembly.bytes});
  if (!image.ok() || (*image)->has_file) {
    unloaded_bytes_ -= assembly.bytes;
  } else {
    memory_bytes_ += assembly.bytes;
  }
  assemblies_.erase(found);
  if (!image.ok()) {
    RCUDA_WARN("%s", image.status().message().c_str());
    return CUDA_ERROR_INVALID_IMAGE;
  }
  ready_[hash].image = std::move(image).value();
  return CUDA_SUCCESS;
}

ImagePointer ImageStore::find(const Sha256& hash) const {
  const auto found = ready_.find(hash);
  return found == ready_.end() ? nullptr : found->second.image;
}

void ImageStore::note_use(const Sha256& hash) {
  Ready& ready = ready_.at(hash);
  if (ready.last_use == 0 && !ready.image->has_file) unloaded_bytes_ -= ready.image->bytes().size();
  ready.last_use = ++uses_;
}

void ImageStore::keep(wire::Kind kind, wire::ObjectId id, std::shared_ptr<Loaded> loaded) {
  loaded_[{kind, id}] = std::move(loaded);
}

std::shared_ptr<ImageStore::Loaded> ImageStore::release(wire::Kind kind, wire::ObjectId id) {
  auto node = loaded_.extract({kind, id});
  return node ? std::move(node.mapped()) : nullptr;
}

void ImageStore::drop_unused(const std::function<bool(wire::Kind, wire::ObjectId)>& exists) {
  if (memory_bytes_ <= most_unused_) return;
  std::erase_if(loaded_,
                [&](const auto& entry) { return !exists(entry.first.first, entry.first.second); });
  const auto is_unused = [](const Ready& ready) {
    return ready.last_use != 0 && !ready.image->has_file && ready.image.use_count() == 1;
  };
  uint64_t bytes = 0;
  std::map<uint64_t, Sha256> by_use;  // the oldest first
  for (const auto& [hash, ready] : ready_) {
    if (!is_unused(ready)) continue;
    bytes += ready.image->bytes().size();
    by_use.emplace(ready.last_use, hash);
  }
  for (const auto& [use, hash] : by_use) {
    if (bytes <= most_unused_) return;
    const auto found = ready_.find(hash);
    const uint64_t dropped = found->second.image->bytes().size();
    bytes -= dropped;
    memory_bytes_ -= dropped;
    ready_.erase(found);
  }
}

}  // namespace rcuda::server
