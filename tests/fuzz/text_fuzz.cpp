#include "tests/fuzz/text_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rcuda::fuzz::fuzz_text(data, size);
  return 0;
}
