#include "common/interop/context_storage.h"

#include <vector>

namespace rcuda::interop {
namespace {

struct CachedValue {
  const ContextStorage* storage = nullptr;
  uint64_t generation = 0;
  CUcontext context = nullptr;
  void* key = nullptr;
  void* value = nullptr;
};
thread_local CachedValue cached;

}  // namespace

void ContextStorage::put(CUcontext context, void* key, void* value, Destructor destructor) {
  MutexLock lock(mutex_);
  values_.insert_or_assign({context, key}, Value{value, destructor});
  generation_.fetch_add(1, std::memory_order_release);
}

bool ContextStorage::remove(CUcontext context, void* key) {
  MutexLock lock(mutex_);
  if (values_.erase({context, key}) == 0) return false;
  generation_.fetch_add(1, std::memory_order_release);
  return true;
}

std::optional<void*> ContextStorage::get(CUcontext context, void* key) {
  if (cached.storage == this && cached.context == context && cached.key == key &&
      cached.generation == generation_.load(std::memory_order_acquire)) {
    return cached.value;
  }
  MutexLock lock(mutex_);
  auto found = values_.find({context, key});
  if (found == values_.end()) return std::nullopt;
  cached = {this, generation_.load(std::memory_order_relaxed), context, key, found->second.value};
  return found->second.value;
}

bool ContextStorage::has_values(CUcontext context) {
  MutexLock lock(mutex_);
  const auto first = values_.lower_bound({context, nullptr});
  return first != values_.end() && first->first.first == context;
}

void ContextStorage::destroy(CUcontext context) {
  std::vector<std::pair<void*, Value>> gone;
  {
    MutexLock lock(mutex_);
    auto it = values_.lower_bound({context, nullptr});
    while (it != values_.end() && it->first.first == context) {
      gone.emplace_back(it->first.second, it->second);
      it = values_.erase(it);
    }
    generation_.fetch_add(1, std::memory_order_release);
  }
  for (const auto& [key, value] : gone) {
    if (value.destructor) value.destructor(context, key, value.value);
  }
}

}  // namespace rcuda::interop
