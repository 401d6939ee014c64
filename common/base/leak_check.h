// What LeakSanitizer must be told. Nothing is compiled without AddressSanitizer.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace rcuda {

// For processes that end by _exit(), as workers do: it looks for leaks in exit() only. What no
// pointer leads to any more is reported, and is a leak whatever threads still run.
inline void look_for_leaks() {
#if defined(__SANITIZE_ADDRESS__)
  __lsan_do_recoverable_leak_check();
#endif
}

// Memory that was mapped, and whose pointers count.
inline void look_for_pointers_in([[maybe_unused]] const void* base,
                                 [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __lsan_register_root_region(base, bytes);
#endif
}

}  // namespace rcuda
