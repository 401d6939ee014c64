// A hash table for the parser, with open addressing and without removal.
//
// std::unordered_map would allocate a node per element, and the parser looks names up several times
// per instruction. Values must be cheap to copy. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace softgpu::ptx {

template <typename Key, typename Value>
class FlatMap {
 public:
  FlatMap() : slots_(64) {}

  // nullptr if the key was never inserted. Valid until the next insertion.
  Value* find(const Key& key) {
    Slot& slot = slots_[locate(key)];
    return slot.used ? &slot.value : nullptr;
  }

  // The value of `key`, value-initialised if new. Valid until the next insertion.
  Value& operator[](const Key& key) {
    size_t at = locate(key);
    if (!slots_[at].used) {
      if (++size_ * 2 > slots_.size()) {
        grow();
        at = locate(key);
      }
      slots_[at].used = true;
      slots_[at].key = key;
    }
    return slots_[at].value;
  }

 private:
  struct Slot {
    Key key{};
    Value value{};
    bool used = false;
  };

  size_t locate(const Key& key) const {
    // Fibonacci hashing, because std::hash of an integer is the integer itself.
    const size_t mask = slots_.size() - 1;
    size_t at = (std::hash<Key>{}(key)*0x9E3779B97F4A7C15ull >> 20) & mask;
    while (slots_[at].used && !(slots_[at].key == key)) at = (at + 1) & mask;
    return at;
  }

  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (Slot& slot : old) {
      if (slot.used) slots_[locate(slot.key)] = std::move(slot);
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace softgpu::ptx
