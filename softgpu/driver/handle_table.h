// HandleTable<T>: the live objects of one kind, found by address.
//
// A CUDA handle is the address of its object. It is looked up here before it is used, so a stale or
// invented handle gives an error code instead of a crash. The table holds one reference; a lookup
// returns another for the time of use. Any thread; lookups take a shared lock, insert and remove
// take an exclusive one. Nothing blocks for long.
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

  // nullptr for an unknown handle.
  std::shared_ptr<T> find(const void* handle) const {
    std::shared_lock lock(mutex_);
    auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }

  // An object for which `predicate` holds, or nullptr.
  template <typename Predicate>
  std::shared_ptr<T> find_if(Predicate predicate) const {
    std::shared_lock lock(mutex_);
    for (const auto& [key, object] : objects_) {
      if (predicate(*object)) return object;
    }
    return nullptr;
  }

  // Removes and returns the object; nullptr for an unknown handle.
  std::shared_ptr<T> remove(const void* handle) {
    std::unique_lock lock(mutex_);
    auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

  // Calls `visit` on every object, with the table locked: `visit` must not use the table.
  template <typename Visit>
  void for_each(Visit visit) const {
    std::shared_lock lock(mutex_);
    for (const auto& [key, object] : objects_) visit(*object);
  }

  // Removes every object for which `predicate` holds.
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

// Tables live as long as the process: threads may call the driver while static objects are
// destroyed.
template <typename T>
HandleTable<T>& handle_table() {
  static auto* table = new HandleTable<T>;
  return *table;
}

}  // namespace softgpu::driver
