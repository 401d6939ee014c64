#pragma once

// cpu_pause(): informs the processor that this thread polls memory. Call it between two reads. The
// other hardware thread of the core then gets more of the core's execution units. Takes from a few
// to some hundred cycles.

namespace rcuda {

inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  // "yield" is a no-op on most of these processors. "isb" takes about as long as x86's pause.
  asm volatile("isb" ::: "memory");
#else
#error "cpu_pause() is missing for this architecture"
#endif
}

}  // namespace rcuda
