#include <cstdio>

#include "common/base/log.h"
#include "tests/fuzz/events_target.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  rcuda::set_log_level("off");
  // Events carry output of kernels, which is dropped; the fuzzer itself writes to the descriptor.
  return std::freopen("/dev/null", "w", stdout) ? 0 : 1;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rcuda::fuzz::fuzz_events(data, size);
  return 0;
}
