// The cost of a start: models the time that a program waits for the driver before it can work.
//
// NVIDIA's kernel driver makes and ends contexts one at a time, over all processes of a machine.
// Here every process waits for a lock on the file of this library before it makes or ends a
// context. A process that ends by _exit() or a signal ends its contexts at no cost.
//
// Threads: any. Blocking: for the turn and the configured time (config.h). Errors: none; if the
// file cannot be locked, the caller does not wait for a turn.
#pragma once

namespace softgpu::driver {

void pay_for_init();
void pay_for_context();      // for making a context
void pay_for_context_end();  // for a context that is destroyed or reset, or whose process exits

}  // namespace softgpu::driver
