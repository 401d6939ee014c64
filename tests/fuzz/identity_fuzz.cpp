#include "tests/fuzz/identity_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rcuda::fuzz::fuzz_identity(data, size);
  return 0;
}
