#include "client/settings/sanitizers.h"

#include <string>

#include <dlfcn.h>

namespace rcuda::client {

Status check_sanitizers() {
#if !defined(__SANITIZE_THREAD__)
  struct Sanitizer {
    const char* symbol;  // only the sanitizer's runtime defines it
    const char* name;
    const char* option;
  };
  constexpr Sanitizer kRefused[] = {{"__tsan_init", "ThreadSanitizer", "-fsanitize=thread"},
                                    {"__msan_init", "MemorySanitizer", "-fsanitize=memory"}};
  for (const Sanitizer& sanitizer : kRefused) {
    if (::dlsym(RTLD_DEFAULT, sanitizer.symbol) == nullptr) continue;
    return Status(Code::kUnsupported,
                  std::string("this program is built with ") + sanitizer.name +
                      ", which allows no mappings at the addresses of remote GPU memory; build it "
                      "without " +
                      sanitizer.option + " (-fsanitize=address and undefined work)");
  }
#endif
  return {};
}

}  // namespace rcuda::client

#if !defined(__SANITIZE_ADDRESS__)
// AddressSanitizer calls this function before constructors have run. A definition in the program
// replaces this definition, and ASAN_OPTIONS overrides single options.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options();  // NOLINT
extern "C" const char* __asan_default_options() { return "verify_asan_link_order=0"; }   // NOLINT
#endif
