// Handlers that concern the machine, not data: clocks, fences, sleeping, traps, mbarrier objects
// and bulk copies. One version serves all instruction sets.
#pragma once

#include <cstdint>

#include "softgpu/exec/form.h"

namespace softgpu::exec {

Handler system_handler(Op op);

// `parity`: the wait names a phase's parity instead of a state. `with_expect`: the arrival also
// raises the expected transaction count.
Handler barrier_object_handler(BarrierOp op, bool parity, bool with_expect);

// Options of cp.async.bulk, stored in Instr::sub: which addresses are 32 bits wide, their state
// spaces, and whether there is a barrier.
struct BulkCopy {
  // Bit 0: the destination's address, bit 1: the source's, bit 2: the barrier's.
  uint8_t narrow : 3;
  bool to_global : 1;
  bool from_global : 1;
  bool has_barrier : 1;
};
static_assert(sizeof(BulkCopy) == 1);
Handler bulk_copy_handler();

}  // namespace softgpu::exec
