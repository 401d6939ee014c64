// A range of addresses that a process uses or keeps free. Plain values; any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace rcuda::wire {

struct AddressWindow {
  uint64_t base = 0;
  uint64_t bytes = 0;
};

inline bool contains(const std::vector<AddressWindow>& windows, uint64_t address) {
  for (const AddressWindow& window : windows) {
    if (address - window.base < window.bytes) return true;
  }
  return false;
}

}  // namespace rcuda::wire
