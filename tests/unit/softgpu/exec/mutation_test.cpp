// Programs that are almost PTX must load or be refused; they never harm the process that loads
// them.
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fuzz/program_target.h"
#include "tests/support/ptx_cases.h"
#include "tests/unit/softgpu/exec/test_device.h"

namespace softgpu::exec {
namespace {

// The text with one small edit: some characters are removed, repeated elsewhere or replaced by
// others of the text, or one character or one number is changed.
std::string mutated(std::string text, std::mt19937& random) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const size_t at = below(text.size());
  switch (below(5)) {
    case 0:
      text.erase(at, 1 + below(12));
      break;
    case 1:
      text.insert(at, text.substr(below(text.size()), 1 + below(12)));
      break;
    case 2:
      text.replace(at, 4, text.substr(below(text.size()), 4));
      break;
    case 3:
      text[at] = static_cast<char>("0123456789.,;[]{}%_+-|!"[below(23)]);
      break;
    default: {
      const size_t digit = text.find_first_of("0123456789", at);
      if (digit != std::string::npos) text.replace(digit, 1, std::to_string(random()));
    }
  }
  return text;
}

TEST(MutationTest, LoadsOrRefuses) {
  std::mt19937 random(1);
  const auto& cases = test::ptx_cases();
  TestDevice device;
  size_t loaded = 0, refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = test::ptx_module({&cases[random() % cases.size()]});
    const auto edits = 1 + random() % 3;
    for (unsigned k = 0; k < edits; ++k) text = mutated(std::move(text), random);
    const rcuda::Status status = device.try_load({text});
    ++(status.ok() ? loaded : refused);
    EXPECT_EQ(status.ok(), status.context().empty());
  }
  EXPECT_GT(loaded, 100u);
  EXPECT_GT(refused, 100u);
}

// A program that loads must also run without harm, whatever the edits did to it.
TEST(MutationTest, RunsToAnEnd) {
  std::mt19937 random(2);
  const auto& cases = test::ptx_cases();
  size_t ran = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string text = test::ptx_module({&cases[random() % cases.size()]});
    const auto edits = 1 + random() % 3;
    for (unsigned k = 0; k < edits; ++k) text = mutated(std::move(text), random);
    ran += fuzz_program(reinterpret_cast<const uint8_t*>(text.data()), text.size()) ? 1 : 0;
  }
  EXPECT_GT(ran, 100u);
}

TEST(MutationTest, ImpossibleSizes) {
  TestDevice device;
  const std::string header = ".version 8.0\n.target sm_75\n.address_size 64\n";
  EXPECT_FALSE(device.try_load({header + ".shared .b8 s[0x100000040];"}).ok());
  EXPECT_FALSE(
      device.try_load({header + ".visible .entry k() { .shared .b8 s[0xffffffff]; ret; }"}).ok());
  device.load({header + ".visible .entry k() { .local .b8 l[0x100000040]; .reg .b64 %rd1; mov.u64 "
                        "%rd1, l; st.local.u32 [%rd1], 1; ret; }"});
  EXPECT_NE(device.program().find_kernel("k")->unsupported, "");
  device.load({header + ".func f(.param .b8 p[1000000]) { ret; }\n.visible .entry k() { .param .b8 "
                        "a[1000000]; call f, (a); ret; }"});
  EXPECT_NE(device.program().find_kernel("k")->unsupported, "");

  std::string registers = ".visible .entry k() { .reg .b128 %q";  // 512 bytes each
  for (int k = 0; k < 132'000; ++k) registers += ", %q" + std::to_string(k);
  EXPECT_THAT(device.try_load({header + registers + "; ret; }"}).message(),
              testing::HasSubstr("'k' has too many registers"));
  std::string constants = ".visible .entry k() { .reg .b64 %r;\n";  // 256 bytes each
  for (int k = 0; k < 264'000; k += 3) {
    constants += "mad.lo.u64 %r, " + std::to_string(k) + ", " + std::to_string(k + 1) + ", " +
                 std::to_string(k + 2) + ";\n";
  }
  EXPECT_THAT(device.try_load({header + constants + "ret; }"}).message(),
              testing::HasSubstr("'k' has too many constants"));
}

}  // namespace
}  // namespace softgpu::exec
