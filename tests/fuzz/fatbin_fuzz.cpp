#include "tests/fuzz/image_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rcuda::image::fuzz_image(data, size);
  return 0;
}
