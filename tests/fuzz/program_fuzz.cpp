#include "tests/fuzz/program_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  softgpu::exec::fuzz_program(data, size);
  return 0;
}
