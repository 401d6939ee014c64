// A fixed stretch of what the image fuzzer does, over nvcc's own output.

#include "tests/fuzz/image_target.h"
#include "tests/fuzz/mutate.h"
#include "tests/unit/common/image/fixtures.h"

namespace rcuda::image {
namespace {

TEST(MutationTest, DamagedImagesAreHandled) {
  for (const char* name : {"size.fatbin", "speed.fatbin", "debug.fatbin", "lto.fatbin",
                           "rdc.fatbin", "sm_90.cubin", "sm_100.cubin"}) {
    const std::string content = read_fixture(name);
    for (uint32_t seed = 0; seed < 5000; ++seed) {
      const std::string damaged = rcuda::fuzz::Mutator(seed).mutate(content);
      fuzz_image(reinterpret_cast<const uint8_t*>(damaged.data()), damaged.size());
    }
  }
}

}  // namespace
}  // namespace rcuda::image
