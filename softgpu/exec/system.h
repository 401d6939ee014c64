// Handlers that are about the machine rather than about data: clocks, fences, sleeping, traps and
// mbarrier objects. They exist once, for every instruction set.
#pragma once

#include "softgpu/exec/form.h"

namespace softgpu::exec {

Handler system_handler(Op op);

// `parity`: the wait names a phase's parity instead of a state. `with_expect`: the arrival also
// raises the expected transaction count.
Handler barrier_object_handler(BarrierOp op, bool parity, bool with_expect);

}  // namespace softgpu::exec
