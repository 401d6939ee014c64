#include "tests/fuzz/handshake_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rcuda::wire::fuzz_handshake(data, size);
  return 0;
}
