// Programs that are built with a sanitizer (docs/sanitizers.md).
//
// AddressSanitizer ends a program if its shared runtime is not the first library. A preloaded
// library comes before the runtime, so this library disables the check (__asan_default_options).
// That is safe: the check concerns libraries that define functions such as malloc(), and this
// library defines no such functions.
#pragma once

#include "common/base/status.h"

namespace rcuda::client {

// Returns an error if the program has a sanitizer that allows no mappings at the addresses of
// device memory. Any thread; nothing blocks.
Status check_sanitizers();

}  // namespace rcuda::client
