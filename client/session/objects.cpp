#include "client/session/objects.h"

#include <mutex>
#include <new>
#include <vector>

#include <sys/mman.h>

namespace rcuda::client {
namespace {

constexpr size_t kSlots = 4u << 20;

// Reserved on first use: a process that never calls CUDA maps nothing.
class Arena {
 public:
  Arena() {
    void* memory = mmap(nullptr, kSlots * sizeof(Object), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) base_ = static_cast<Object*>(memory);
  }

  Object* find(const void* handle) const {
    const auto offset = reinterpret_cast<uintptr_t>(handle) - reinterpret_cast<uintptr_t>(base_);
    if (offset >= kSlots * sizeof(Object) || offset % sizeof(Object) != 0) return nullptr;
    return base_ + offset / sizeof(Object);
  }

  Object* create(wire::Kind kind) {
    std::lock_guard lock(mutex_);
    size_t slot;
    if (!free_.empty()) {
      slot = free_.back();
      free_.pop_back();
    } else if (base_ && used_ < kSlots) {
      slot = used_.load(std::memory_order_relaxed);
      used_.store(slot + 1, std::memory_order_release);
    } else {
      return nullptr;
    }
    auto* object = new (base_ + slot) Object;
    object->kind.store(kind, std::memory_order_release);  // pairs with find_object's acquire
    return object;
  }

  void retire(Object* object) {
    std::lock_guard lock(mutex_);
    object->kind.store(wire::Kind::kNone, std::memory_order_release);
    free_.push_back(static_cast<size_t>(object - base_));
  }

  size_t used() const { return used_.load(std::memory_order_acquire); }
  Object* slot(size_t index) const { return base_ + index; }

 private:
  Object* base_ = nullptr;
  std::mutex mutex_;
  std::atomic<size_t> used_{0};
  std::vector<size_t> free_;
};

// Never destroyed: NVIDIA's libraries release handles from their own static destructors.
Arena& arena() {
  static Arena* instance = new Arena;
  return *instance;
}

}  // namespace

Object* find_object(const void* handle, wire::Kind kind) {
  Object* object = arena().find(handle);
  if (!object || object->kind.load(std::memory_order_acquire) != kind) return nullptr;
  return object;
}

Object* create_object(wire::Kind kind) { return arena().create(kind); }

void retire_object(Object* object) { arena().retire(object); }

void for_each_object(wire::Kind kind, void (*visit)(Object*, void*), void* argument) {
  Arena& objects = arena();
  for (size_t i = 0; i < objects.used(); ++i) {
    Object* object = objects.slot(i);
    if (object->kind.load(std::memory_order_acquire) == kind) visit(object, argument);
  }
}

}  // namespace rcuda::client
