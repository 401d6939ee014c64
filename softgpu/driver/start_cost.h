// What starts cost: times that a program waits for a driver before it can work, modelled.
//
// NVIDIA's kernel driver makes and ends one context after the other, over all processes of a
// machine. This is modelled by a lock on the file of this library, so every process that uses this
// driver waits for its turn. A process that ends by _exit() or a signal ends its contexts at no
// cost.
// Threads: any. Blocking: for the configured time (config.h), and for the turn. Errors: none; if
// the file cannot be locked, nobody waits for a turn.
#pragma once

namespace softgpu::driver {

void pay_for_init();
void pay_for_context();      // that is made
void pay_for_context_end();  // that is destroyed or reset, or whose process exits

}  // namespace softgpu::driver
