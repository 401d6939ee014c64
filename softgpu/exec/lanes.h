// The data that an instruction's handler works on: the operands of 32 lanes and the memory they may
// touch.
//
// Each running block has one Lanes. The warp's loop sets it up for the strand that it is about to
// execute. A handler uses the Lanes only during its call, on the block's worker thread. After a bad
// access the handler calls fault_at() and skips the other lanes; the loop then ends the grid.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda.h>

#include "softgpu/exec/code.h"

namespace softgpu::texture {
struct Snapshot;
}

namespace softgpu::exec {

class Warp;
class Memory;

#define SOFTGPU_INLINE __attribute__((always_inline)) inline

struct Lanes {
  std::byte* bank[kBanks] = {};
  uint32_t mask = 0;  // the lanes that execute
  bool faulted = false;

  // The block's shared memory, the warp's local memory (that of lane l starts at local + l *
  // local_stride) and the kernel's parameters.
  std::byte* shared = nullptr;
  uint32_t shared_bytes = 0;
  uint32_t parameter_bytes = 0;
  std::byte* local = nullptr;
  uint32_t local_stride = 0;
  uint32_t local_base = 0;   // start of this frame's local area in each lane's memory
  uint32_t local_limit = 0;  // its end: the first local address that may not be used
  const std::byte* parameters = nullptr;
  Memory* memory = nullptr;                     // global memory
  const texture::Snapshot* textures = nullptr;  // the launch's texture and surface objects
  const Slot* lists = nullptr;                  // of the running function: see Function::lists

  // The instructions that the strand may still execute in its turn. Instructions that are typical
  // of spin loops have an extra cost (kSpinCost, kSleepCost).
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

// Extra cost of some instructions, subtracted from the fuel of the strand's turn. Every instruction
// also costs 1.
inline constexpr int64_t kSpinCost = 512;    // atomics and strong (not weak) accesses
inline constexpr int64_t kSleepCost = 4096;  // nanosleep, failed waits

}  // namespace softgpu::exec
