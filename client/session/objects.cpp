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

  Object* create(wire::Kind kind, const ObjectIdentity& identity) {
    std::lock_guard lock(mutex_);
    Object* object;
    if (!free_.empty()) {
      object = base_ + free_.back();
      free_.pop_back();
      begin_anew(*object);
    } else if (const size_t slot = used_.load(std::memory_order_relaxed); base_ && slot < kSlots) {
      object = new (base_ + slot) Object;
      used_.store(slot + 1, std::memory_order_release);
    } else {
      return nullptr;
    }
    object->id = identity.id;
    object->context = identity.context;
    object->session = identity.session;
    object->device = identity.device;
    object->extra = identity.extra;
    object->serial.store(++serials_, std::memory_order_relaxed);
    object->kind.store(kind, std::memory_order_release);  // pairs with find_object's acquire
    return object;
  }

  void retire(Object* object) {
    std::lock_guard lock(mutex_);
    object->kind.store(wire::Kind::kNone, std::memory_order_release);
    free_.push_back(static_cast<size_t>(object - base_));
  }

  std::vector<Object*> in_context(wire::Kind kind, const Session* session, wire::ObjectId context) {
    std::vector<Object*> found;
    std::lock_guard lock(mutex_);
    for (Object* object = base_; object != base_ + used_.load(std::memory_order_relaxed);
         ++object) {
      if (object->kind.load(std::memory_order_relaxed) == kind && object->session == session &&
          object->context == context) {
        found.push_back(object);
      }
    }
    return found;
  }

  // All but the kind, which others may be looking at.
  static void begin_anew(Object& object) {
    object.flags = 0;
    object.priority = 0;
    object.word = 0;
    object.sequence = 0;
    object.watched = 0;
    object.learned = 0;
    object.finished = ~0ull;
    object.uses = 0;
    object.queued = 0;
    object.pace_at = 0;
    object.done = 0;
    object.home = nullptr;
  }

  size_t used() const { return used_.load(std::memory_order_acquire); }
  Object* slot(size_t index) const { return base_ + index; }

 private:
  Object* base_ = nullptr;
  std::mutex mutex_;
  std::atomic<size_t> used_{0};
  uint64_t serials_ = 0;
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

Object* create_object(wire::Kind kind, const ObjectIdentity& identity) {
  return arena().create(kind, identity);
}

void retire_object(Object* object) { arena().retire(object); }

std::vector<Object*> objects_in(wire::Kind kind, const Session* session, wire::ObjectId context) {
  return arena().in_context(kind, session, context);
}

void for_each_object(wire::Kind kind, void (*visit)(Object*, void*), void* argument) {
  Arena& objects = arena();
  for (size_t i = 0; i < objects.used(); ++i) {
    Object* object = objects.slot(i);
    if (object->kind.load(std::memory_order_acquire) == kind) visit(object, argument);
  }
}

}  // namespace rcuda::client
