// Calls for LeakSanitizer. Empty without AddressSanitizer.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace rcuda {

// For processes that end by _exit(), as workers do, because LeakSanitizer checks only in exit(). It
// reports memory that no pointer reaches; that is a leak, even while threads still run.
inline void look_for_leaks() {
#if defined(__SANITIZE_ADDRESS__)
  __lsan_do_recoverable_leak_check();
#endif
}

// Tells it about mapped memory that holds pointers.
inline void look_for_pointers_in([[maybe_unused]] const void* base,
                                 [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __lsan_register_root_region(base, bytes);
#endif
}

}  // namespace rcuda
