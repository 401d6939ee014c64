#include "common/base/log.h"
#include "tests/fuzz/session_target.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  rcuda::set_log_level("off");  // each refused session would log a line
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)rcuda::fuzz::fuzz_session(data, size);
  return 0;
}
