// The objects of one type, and their handles.
//
// Any pointer that an application passes is checked before it is used: find<T>() returns a live
// object of exactly this type, or null. A slot is reused after its object is destroyed, so a stale
// handle finds no object or a newer object, never freed memory. Ref<T> detects the newer object.
//
// Threads: any. find() is lock-free. An object is fully constructed before other threads can find
// it. A thread may destroy an object only if no other thread uses it; CUDA demands this of the
// application.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "client/objects/object.h"
#include "client/objects/slots.h"
#include "common/base/mutex.h"

namespace rcuda::client {

template <typename T>
class Arena {
 public:
  // Never destroyed: NVIDIA's libraries release handles from their own static destructors.
  static Arena& get() {
    static Arena* instance = new Arena;
    return *instance;
  }

  T* find(const void* handle) const {
    const auto offset =
        reinterpret_cast<uintptr_t>(handle) - reinterpret_cast<uintptr_t>(slots_.base());
    const size_t index = offset / sizeof(Slot);
    if (index >= slots_.used() || offset % sizeof(Slot) != 0) return nullptr;
    return at(index)->object_if_alive();
  }

  // Creates an object. Returns null if no slot or no memory is left.
  template <typename... Arguments>
  T* create(const Identity& identity, Arguments&&... arguments) {
    auto* slot = static_cast<Slot*>(slots_.take());
    if (!slot) return nullptr;
    T* object = new (slot->memory) T(identity, std::forward<Arguments>(arguments)...);
    object->serial = Slots::next_serial();
    slot->serial.store(object->serial, std::memory_order_release);  // pairs with object_if_alive
    return object;
  }

  void destroy(T* object) {
    auto* slot = reinterpret_cast<Slot*>(object);
    {
      MutexLock lock(search_mutex_);
      slot->serial.store(0, std::memory_order_release);
    }
    object->~T();
    slots_.give(slot);
  }

  // Returns the serial of the object that is now in the slot of `object`; 0 if the slot is free.
  // `object` may be destroyed.
  static uint64_t serial_at(const T* object) {
    return reinterpret_cast<const Slot*>(object)->serial.load(std::memory_order_acquire);
  }

  // Whether an object of this arena has this address or may get it later.
  bool is_own_address(const void* address) const { return slots_.contains(address); }

  template <typename Visit>
  void each(const Visit& visit) {
    for (size_t i = 0, end = slots_.used(); i < end; ++i) {
      if (T* object = at(i)->object_if_alive()) visit(*object);
    }
  }

  template <typename Wanted>
  std::vector<T*> select(const Wanted& wanted) {
    std::vector<T*> found;
    MutexLock lock(search_mutex_);
    each([&](T& object) {
      if (wanted(object)) found.push_back(&object);
    });
    return found;
  }

 private:
  struct Slot {
    alignas(64) std::byte memory[sizeof(T)];
    std::atomic<uint64_t> serial;  // of the object; 0: the slot is free

    T* object_if_alive() {
      return serial.load(std::memory_order_acquire) == 0 ? nullptr : reinterpret_cast<T*>(memory);
    }
  };
  static_assert(alignof(T) <= 64);

  Arena() : slots_(sizeof(Slot)) {}
  Slot* at(size_t index) const { return reinterpret_cast<Slot*>(slots_.base()) + index; }

  Slots slots_;
  Mutex search_mutex_;  // held while select() reads objects that other threads may destroy
};

// Returns the object of the handle, or null if the handle is not a live object of this type.
template <typename T>
T* find(const void* handle) {
  return Arena<T>::get().find(handle);
}

// Creates an object. Returns null if four million objects of the type are alive, or if no memory is
// left.
template <typename T, typename... Arguments>
T* create(const Identity& identity, Arguments&&... arguments) {
  return Arena<T>::get().create(identity, std::forward<Arguments>(arguments)...);
}

template <typename T>
void destroy(T* object) {
  Arena<T>::get().destroy(object);
}

// Calls `visit` with every live object. The caller must keep objects from being destroyed during
// the call; other threads may create objects.
template <typename T, typename Visit>
void for_each(const Visit& visit) {
  Arena<T>::get().each(visit);
}

// Returns every live object for which `wanted` is true. `wanted` is called under a lock and must be
// quick. Other threads may create and destroy objects during the call, so a returned object may be
// destroyed.
template <typename T, typename Wanted>
std::vector<T*> select(const Wanted& wanted) {
  return Arena<T>::get().select(wanted);
}

// Returns every live object of the type in a context.
template <typename T>
std::vector<T*> objects_in(const Session* session, wire::ObjectId context) {
  return select<T>(
      [=](const T& object) { return object.session == session && object.context == context; });
}

// A reference to an object that any thread may destroy.
template <typename T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* object) : object_(object), serial_(object ? object->serial : 0) {}

  // Returns the object, or null if it is destroyed, even if another object uses its slot now.
  T* get() const { return object_ && Arena<T>::serial_at(object_) == serial_ ? object_ : nullptr; }
  // Returns the object's handle, even if the object is destroyed.
  T* handle() const { return object_; }

  bool operator==(const Ref&) const = default;

 private:
  T* object_ = nullptr;
  uint64_t serial_ = 0;
};

}  // namespace rcuda::client
