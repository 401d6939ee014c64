// The addresses of a load, store or atomic: computed, checked and translated for all lanes at once.
//
// Shared, local and parameter addresses are checked against their window, global and constant
// addresses against the device's map (memory.h). An illegal or misaligned access of an active lane
// is recorded as the grid's fault, with thread and address. Inactive lanes are not checked. Runs on
// the block's worker; nothing blocks.
#pragma once

#include "softgpu/exec/lanes/lane_loops.h"
#include "softgpu/exec/memory.h"

namespace softgpu::exec::SOFTGPU_ISA {

struct Addresses {
  // Valid for every lane: an inactive lane has the address of an active lane.
  alignas(64) uint64_t host[kLanes];
  bool uniform;     // all active lanes access the same host bytes
  bool contiguous;  // all 32 lanes are active and access consecutive elements
};

// Resolves [i.a + i.imm] in the space i.sub. Returns false, after recording the fault, if an active
// lane may not access `bytes` there. `bytes` is a power of two and also the required alignment.
bool resolve(Lanes& x, const Instr& i, uint32_t bytes, bool write, Addresses& out);

// PTX addresses before translation, for handlers that process lanes one by one.
void compute_addresses(const Lanes& x, const Instr& i, Slot base, int64_t offset, bool is_32_bit,
                       uint64_t* out);

}  // namespace softgpu::exec::SOFTGPU_ISA
