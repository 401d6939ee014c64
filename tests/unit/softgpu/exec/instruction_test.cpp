// Every supported instruction form against an independent reference: tests/support/ptx_cases.
#include <algorithm>

#include <gtest/gtest.h>

#include "softgpu/exec/form.h"
#include "tests/support/ptx_cases.h"
#include "tests/unit/softgpu/exec/test_device.h"

namespace softgpu::exec {
namespace {

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const test::PtxCase& c : test::ptx_cases()) {
    if (std::find(names.begin(), names.end(), c.family) == names.end()) names.push_back(c.family);
  }
  return names;
}

class InstructionTest : public testing::TestWithParam<std::string> {};

TEST_P(InstructionTest, MatchesItsReference) {
  std::vector<const test::PtxCase*> cases;
  for (const test::PtxCase& c : test::ptx_cases()) {
    if (c.family == GetParam()) cases.push_back(&c);
  }
  TestDevice device;
  device.load(test::ptx_module(cases));
  for (const test::PtxCase* c : cases) {
    SCOPED_TRACE(c->name);
    auto* in = device.array<uint64_t>(c->input.size());
    auto* out = device.array<uint64_t>(c->expected.size());
    std::copy(c->input.begin(), c->input.end(), in);
    const Fault fault =
        device.launch(c->entry, {c->blocks}, {c->threads}, Arguments() << in << out);
    ASSERT_EQ(fault.code, CUDA_SUCCESS) << fault.message << "\n" << c->kernel;
    const test::Comparison result = test::compare(*c, {out, out + c->expected.size()}, c->expected);
    EXPECT_EQ(result.bad, 0u) << result.first_bad << "\n" << c->kernel;
    // Payloads of f64 NaNs are unspecified; all other NaNs are canonical.
    const bool has_f64 =
        std::find(c->outputs.begin(), c->outputs.end(), test::Word::kF64) != c->outputs.end();
    EXPECT_TRUE(has_f64 || result.nan_bits == 0) << result.nan_bits << " NaNs of other bits";
    device.release(reinterpret_cast<CUdeviceptr>(in));
    device.release(reinterpret_cast<CUdeviceptr>(out));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, InstructionTest, testing::ValuesIn(families()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); },
                               '_');
                           return name;
                         });

TEST(VectorAtomicTest, DestinationsMayBeSourcesInAnotherOrder) {
  TestDevice device;
  device.load(R"(.version 8.1
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p)
{
  .reg .b64 %p;
  .reg .f32 %a, %b;
  ld.param.u64 %p, [p];
  mov.f32 %a, 0f3F800000;
  mov.f32 %b, 0f40000000;
  atom.global.add.v2.f32 {%b, %a}, [%p], {%a, %b};
  st.global.v2.f32 [%p+8], {%a, %b};
  ret;
})");
  auto* data = device.array<float>(4);
  data[0] = 10, data[1] = 20;
  const Fault fault = device.launch("k", {1}, {1}, Arguments() << data);
  ASSERT_EQ(fault.code, CUDA_SUCCESS) << fault.message;
  EXPECT_EQ(std::vector<float>(data, data + 4), (std::vector<float>{11, 22, 20, 10}));
}

}  // namespace
}  // namespace softgpu::exec
