// Calls for LeakSanitizer, which is a part of AddressSanitizer.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#else
// Null if the program does not contain LeakSanitizer. The program may contain LeakSanitizer
// although this library is built without it.
extern "C" __attribute__((weak)) void __lsan_register_root_region(const void*,  // NOLINT
                                                                  std::size_t);
#endif

namespace rcuda {

// Makes LeakSanitizer check now. Processes that end by _exit(), as workers do, must call this,
// because LeakSanitizer itself checks only in exit(). LeakSanitizer reports memory that no pointer
// reaches, which is a leak even while threads still run.
inline void look_for_leaks() {
#if defined(__SANITIZE_ADDRESS__)
  __lsan_do_recoverable_leak_check();
#endif
}

// Makes LeakSanitizer search this mapped memory for pointers.
inline void look_for_pointers_in(const void* base, std::size_t bytes) {
#if !defined(__SANITIZE_ADDRESS__)
  if (__lsan_register_root_region == nullptr) return;
#endif
  __lsan_register_root_region(base, bytes);
}

}  // namespace rcuda
