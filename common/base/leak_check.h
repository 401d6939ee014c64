// Leaks of processes that end by _exit(), as workers do: LeakSanitizer looks for them in exit()
// only. Nothing is compiled without AddressSanitizer.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace rcuda {

// What no pointer leads to any more is reported, and is a leak whatever threads still run.
inline void look_for_leaks() {
#if defined(__SANITIZE_ADDRESS__)
  __lsan_do_recoverable_leak_check();
#endif
}

}  // namespace rcuda
