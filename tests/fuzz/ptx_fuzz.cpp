#include "tests/fuzz/ptx_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  softgpu::ptx::fuzz_ptx(data, size);
  return 0;
}
