// Checked memory access for handlers: translates a lane's address to host bytes.
//
// Each running block has one Memory, used only by its worker thread. It caches the ranges that it
// last found in the device's MemoryMap, and drops them when the map changes. A returned host
// pointer is valid for the current instruction: as in CUDA, memory that a running kernel uses must
// not be freed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "softgpu/exec/lanes.h"
#include "softgpu/exec/memory_map.h"

namespace softgpu::exec {

class Memory {
 public:
  // `constants` are the program's .const banks: readable as the map says, never writable.
  void bind(const MemoryMap* map, std::span<const Range> constants) {
    map_ = map;
    constants_ = constants;
    generation_ = 0;
  }

  // Whether one range allows access to all of [begin, end).
  SOFTGPU_INLINE bool covers(uint64_t begin, uint64_t end, bool write) {
    const Range& last = recent_[write ? 1 : 0];
    if (generation_ == map_->generation() && begin >= last.begin && end <= last.end &&
        begin <= end) {
      return true;
    }
    return find(begin, end, write);
  }

 private:
  static constexpr uint32_t kRemembered = 4;

  bool find(uint64_t begin, uint64_t end, bool write);

  const MemoryMap* map_ = nullptr;
  std::span<const Range> constants_;
  uint64_t generation_ = 0;
  Range recent_[2];  // last readable, last writable
  Range readable_[kRemembered];
  Range writable_[kRemembered];
  uint32_t next_[2] = {0, 0};  // next entries to replace
};

// Whether an access lies inside a window of `limit` bytes. A negative offset is a huge address,
// which lies outside.
SOFTGPU_INLINE bool inside(uint64_t address, uint32_t bytes, uint64_t limit) {
  return address <= limit && bytes <= limit - address;
}

// The host address of one lane's access, or nullptr after recording a fault. For handlers that
// process lanes one by one; loads and stores of whole registers have a vectorised translation
// (lanes/address.h).
std::byte* host_address(Lanes& x, uint32_t lane, ptx::Space space, uint64_t address, uint32_t bytes,
                        bool write);

// Reads a NUL-terminated string from the lane's memory, at most `limit` characters. False after
// recording a fault.
bool read_string(Lanes& x, uint32_t lane, uint64_t address, size_t limit, std::string* text);

}  // namespace softgpu::exec
