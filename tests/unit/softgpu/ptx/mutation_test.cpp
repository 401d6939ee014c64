// A fixed part of the PTX fuzzer's work, over nvcc's own output.

#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include "tests/fuzz/mutate.h"
#include "tests/fuzz/ptx_target.h"

namespace softgpu::ptx {
namespace {

TEST(MutationTest, DamagedTextGivesAnErrorOrASoundModule) {
  for (const char* name : {"variables.debug", "control.sm_75", "collectives.sm_90"}) {
    std::ifstream file(std::string(RCUDA_PTX_FIXTURES) + "/" + name + ".ptx", std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    ASSERT_FALSE(text.empty()) << name;
    for (uint32_t seed = 0; seed < 1500; ++seed) {
      const std::string damaged = rcuda::fuzz::Mutator(seed).mutate(text);
      fuzz_ptx(reinterpret_cast<const uint8_t*>(damaged.data()), damaged.size());
    }
  }
}

}  // namespace
}  // namespace softgpu::ptx
