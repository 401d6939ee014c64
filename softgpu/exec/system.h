// Handlers that are about the machine rather than about data: clocks, fences, sleeping, traps,
// mbarrier objects and bulk copies. They exist once, for every instruction set.
#pragma once

#include <cstdint>

#include "softgpu/exec/form.h"

namespace softgpu::exec {

Handler system_handler(Op op);

// `parity`: the wait names a phase's parity instead of a state. `with_expect`: the arrival also
// raises the expected transaction count.
Handler barrier_object_handler(BarrierOp op, bool parity, bool with_expect);

// cp.async.bulk. Which addresses are 32 bits wide and where they lie: Instr::sub.
struct BulkCopy {
  uint8_t narrow : 3;  // bit 0: the destination's address, 1: the source's, 2: the barrier's
  bool to_global : 1;
  bool from_global : 1;
  bool has_barrier : 1;
};
static_assert(sizeof(BulkCopy) == 1);
Handler bulk_copy_handler();

}  // namespace softgpu::exec
