// A fixed part of the image fuzzer's work, over nvcc's own output and softgpu's.

#include <vector>

#include "tests/fuzz/image_target.h"
#include "tests/fuzz/mutate.h"
#include "tests/unit/common/image/fixtures.h"

namespace rcuda::image {
namespace {

void fuzz(const std::string& content) {
  // An exact heap block, so that a sanitizer detects reads beyond its end.
  const std::vector<uint8_t> bytes(content.begin(), content.end());
  fuzz_image(bytes.data(), bytes.size());
}

void fuzz_mutations(const std::string& content) {
  for (uint32_t seed = 0; seed < 5000; ++seed) fuzz(rcuda::fuzz::Mutator(seed).mutate(content));
}

TEST(MutationTest, DamagedImagesAreHandled) {
  for (const char* name : {"size.fatbin", "speed.fatbin", "debug.fatbin", "lto.fatbin",
                           "rdc.fatbin", "sm_90.cubin", "sm_100.cubin"}) {
    fuzz_mutations(read_fixture(name));
  }
  const std::vector<std::byte> linked = softgpu::driver::link_image({"first", "second"});
  fuzz_mutations({reinterpret_cast<const char*>(linked.data()), linked.size()});
}

}  // namespace
}  // namespace rcuda::image
