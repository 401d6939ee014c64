// HandleTable<T>: the live objects of one kind, known by their address.
//
// A CUDA handle is the address of its object; it is looked up here before it is used, so a stale or
// invented handle gives an error code instead of a crash. The table holds one reference; whoever
// looks a handle up holds another while he works with the object. Any thread; lookups take a shared
// lock, insert and remove an exclusive one. Nothing blocks for long.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace softgpu::driver {

template <typename T>
class HandleTable {
 public:
  void insert(std::shared_ptr<T> object) {
    std::unique_lock lock(mutex_);
    const void* key = object.get();
    objects_.insert_or_assign(key, std::move(object));
  }

  // The object, or nullptr when the handle names none.
  std::shared_ptr<T> find(const void* handle) const {
    std::shared_lock lock(mutex_);
    auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }

  // Takes the object out; nullptr when the handle names none.
  std::shared_ptr<T> remove(const void* handle) {
    std::unique_lock lock(mutex_);
    auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

  // Calls `visit` on every object, under the table's lock: it must not use the table.
  template <typename Visit>
  void for_each(Visit visit) const {
    std::shared_lock lock(mutex_);
    for (const auto& [key, object] : objects_) visit(*object);
  }

  // Takes out every object for which `predicate` holds.
  template <typename Predicate>
  std::vector<std::shared_ptr<T>> remove_if(Predicate predicate) {
    std::vector<std::shared_ptr<T>> removed;
    std::unique_lock lock(mutex_);
    for (auto it = objects_.begin(); it != objects_.end();) {
      if (predicate(*it->second)) {
        removed.push_back(std::move(it->second));
        it = objects_.erase(it);
      } else {
        ++it;
      }
    }
    return removed;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<T>> objects_;
};

// Tables live as long as the process: threads may still call the driver while statics are
// destroyed.
template <typename T>
HandleTable<T>& handle_table() {
  static auto* table = new HandleTable<T>;
  return *table;
}

}  // namespace softgpu::driver
