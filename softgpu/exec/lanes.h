// What an instruction's handler sees: the operands of 32 lanes and the memory they may touch.
//
// One Lanes belongs to each block being run and is set up by the warp's loop for the strand it is
// about to execute; a handler reads and writes it only while it runs, on the block's worker thread.
// Handlers report a bad access through fault_at() and leave the rest of the lanes alone; the loop
// ends the grid then.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda.h>

#include "softgpu/exec/code.h"

namespace softgpu::exec {

class Warp;
class Memory;

#define SOFTGPU_INLINE __attribute__((always_inline)) inline

struct Lanes {
  std::byte* bank[kBanks] = {};
  uint32_t mask = 0;  // the lanes that execute
  bool faulted = false;

  // Shared memory of the block, local memory of the warp (lane l's starts at local + l * stride),
  // and the kernel's parameters.
  std::byte* shared = nullptr;
  uint32_t shared_bytes = 0;
  uint32_t parameter_bytes = 0;
  std::byte* local = nullptr;
  uint32_t local_stride = 0;
  uint32_t local_base = 0;   // where this frame's local area begins in each lane's
  uint32_t local_limit = 0;  // and where it ends: the highest local address that may be used
  const std::byte* parameters = nullptr;
  Memory* memory = nullptr;     // global memory
  const Slot* lists = nullptr;  // of the running function: see Function::lists

  // What is left of the strand's turn. Instructions that spin loops are made of take more of it.
  int64_t fuel = 0;
  Warp* warp = nullptr;

  // Filled by fault_at().
  CUresult fault_code = CUDA_SUCCESS;
  uint32_t fault_lane = 0;
  uint64_t fault_address = 0;
  const char* fault_reason = nullptr;

  template <class T>
  SOFTGPU_INLINE T* at(Slot slot) const {
    return reinterpret_cast<T*>(bank[slot.bank()] + slot.offset_bytes());
  }
  SOFTGPU_INLINE uint32_t& predicate(Slot slot) const { return *at<uint32_t>(slot); }
  SOFTGPU_INLINE void set_predicate(Slot slot, uint32_t bits) const {
    uint32_t& p = predicate(slot);
    p = (p & ~mask) | (bits & mask);
  }

  SOFTGPU_INLINE void fault_at(uint32_t lane, CUresult code, uint64_t address, const char* reason) {
    if (faulted) return;
    faulted = true;
    fault_lane = lane;
    fault_code = code;
    fault_address = address;
    fault_reason = reason;
  }
};

// What an instruction takes from its strand's turn beyond the one it counts for.
inline constexpr int64_t kSpinCost = 512;    // atomics, volatile and acquire accesses
inline constexpr int64_t kSleepCost = 4096;  // nanosleep, failed waits

}  // namespace softgpu::exec
