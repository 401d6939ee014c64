#include "common/image/cubin.h"

#include <cstring>

#include <gmock/gmock.h>

#include "common/image/unpack.h"
#include "tests/unit/common/image/fixtures.h"

namespace rcuda::image {
namespace {

using testing::ElementsAre;
using testing::FieldsAre;
using testing::IsEmpty;

const KernelLayout* find(const std::vector<KernelLayout>& kernels, const std::string& name) {
  for (const KernelLayout& kernel : kernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

void expect_all_kernels(Bytes elf) {
  const Result<std::vector<KernelLayout>> kernels = cubin_kernels(elf);
  ASSERT_TRUE(kernels.ok()) << kernels.status().message();
  ASSERT_EQ(kernels->size(), 3u);
  const KernelLayout* mixed = find(*kernels, "_Z5mixedPf5Mixedcs");
  ASSERT_NE(mixed, nullptr);
  EXPECT_THAT(mixed->parameters,
              ElementsAre(FieldsAre(0, 8), FieldsAre(8, 40), FieldsAre(48, 1), FieldsAre(50, 2)));
  EXPECT_EQ(mixed->parameter_bytes, 52u);
  const KernelLayout* none = find(*kernels, "no_parameters");
  ASSERT_NE(none, nullptr);
  EXPECT_THAT(none->parameters, IsEmpty());
  EXPECT_EQ(none->parameter_bytes, 0u);
  const KernelLayout* large = find(*kernels, "large");
  ASSERT_NE(large, nullptr);
  EXPECT_THAT(large->parameters,
              ElementsAre(FieldsAre(0, 8), FieldsAre(8, 5000), FieldsAre(5008, 4)));
  EXPECT_EQ(large->parameter_bytes, 5012u);
}

TEST(CubinTest, ReadsParametersOfEveryArchitecture) {
  for (const char* name : {"sm_75.cubin", "sm_90.cubin", "sm_100.cubin", "sm_120.cubin"}) {
    SCOPED_TRACE(name);
    const std::string file = read_fixture(name);
    expect_all_kernels(bytes_of(file));
  }
}

TEST(CubinTest, ReadsImagesInsideFatbins) {
  for (const char* name : {"balance.fatbin", "debug.fatbin", "sass_only.fatbin"}) {
    SCOPED_TRACE(name);
    const std::string file = read_fixture(name);
    const auto list = entries(bytes_of(file));
    ASSERT_TRUE(list.ok());
    for (const Entry& entry : *list) {
      if (entry.kind != EntryKind::kElf) continue;
      const auto elf = decompress(entry);
      ASSERT_TRUE(elf.ok());
      expect_all_kernels(bytes_of(*elf));
    }
  }
}

TEST(CubinTest, RefusesOtherElfFiles) {
  std::string file = read_fixture("sm_75.cubin");
  file[18] = 62;  // e_machine: x86-64
  EXPECT_FALSE(cubin_kernels(bytes_of(file)).ok());
  EXPECT_FALSE(cubin_kernels(bytes_of(file).first(40)).ok());
  EXPECT_FALSE(cubin_kernels({}).ok());
}

TEST(CubinTest, SurvivesDamageAnywhere) {
  const std::string good = read_fixture("sm_90.cubin");
  for (size_t i = 0; i < good.size(); i += 3) {
    std::string file = good;
    file[i] = static_cast<char>(file[i] ^ 0xff);
    const auto kernels = cubin_kernels(bytes_of(file));
    if (!kernels.ok()) continue;
    EXPECT_LE(kernels->size(), file.size() / 24);
  }
}

}  // namespace
}  // namespace rcuda::image
