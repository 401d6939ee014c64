#include "common/image/kernel_names.h"

#include <gmock/gmock.h>

#include "common/image/unpack.h"
#include "tests/unit/common/image/fixtures.h"

namespace rcuda::image {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

Result<std::vector<std::string>> names_of(const std::string& file) {
  const Result<Image> image = inspect(bytes_of(file));
  return image.ok() ? kernel_names(*image) : Result<std::vector<std::string>>(image.status());
}

void expect_all_kernels(const std::string& file) {
  const auto names = names_of(file);
  ASSERT_TRUE(names.ok()) << names.status().message();
  EXPECT_THAT(*names, UnorderedElementsAre("_Z5mixedPf5Mixedcs", "no_parameters", "large"));
}

TEST(KernelNamesTest, AreReadFromEveryArchitecture) {
  for (const char* name :
       {"sm_75.cubin", "sm_90.cubin", "sm_100.cubin", "sm_120.cubin", "sm_75.ptx"}) {
    SCOPED_TRACE(name);
    expect_all_kernels(read_fixture(name));
  }
}

TEST(KernelNamesTest, AreReadFromImagesInsideFatbins) {
  for (const char* name : {"balance.fatbin", "debug.fatbin", "sass_only.fatbin"}) {
    SCOPED_TRACE(name);
    const std::string file = read_fixture(name);
    EXPECT_EQ(names_of(file).status().code(), Code::kUnsupported);
    const auto list = entries(bytes_of(file));
    ASSERT_TRUE(list.ok());
    for (const Entry& entry : *list) {
      if (entry.kind != EntryKind::kElf) continue;
      const auto elf = decompress(entry);
      ASSERT_TRUE(elf.ok());
      expect_all_kernels(*elf);
    }
  }
}

TEST(KernelNamesTest, OtherElfFilesAreRefused) {
  std::string file = read_fixture("sm_75.cubin");
  file[18] = 62;  // e_machine: x86-64
  EXPECT_FALSE(names_of(file).ok());
  EXPECT_FALSE(names_of(file.substr(0, 40)).ok());
  EXPECT_FALSE(names_of("").ok());
}

TEST(KernelNamesTest, SurviveDamageAnywhere) {
  const std::string good = read_fixture("sm_90.cubin");
  for (size_t i = 0; i < good.size(); i += 3) {
    std::string file = good;
    file[i] = static_cast<char>(file[i] ^ 0xff);
    const auto names = names_of(file);
    if (!names.ok()) continue;
    EXPECT_LE(names->size(), file.size() / 24);
  }
}

Result<std::vector<std::string>> names_in(const std::string& text) {
  return kernel_names({Format::kText, {bytes_of(text)}});
}

TEST(KernelNamesTest, OnlyEntriesOfPtxAreKernels) {
  const auto names = names_in(
      ".version 8.0\n.target sm_90\n// .entry commented()\n.global .b8 text[] = {46};\n"
      ".func (.param .b32 r) helper(.param .b32 x) { ret; }\n.entry first { ret; }\n"
      ".file 1 \"a.entry b.cu\"\n.weak .entry second(.param .u32 n)\n.maxntid 8\n{ ret; }");
  ASSERT_TRUE(names.ok());
  EXPECT_THAT(*names, ElementsAre("first", "second"));
}

TEST(KernelNamesTest, AnEntryWithoutANameIsRefused) {
  for (const char* text : {".entry", ".entry (", ".entry /*"}) {
    EXPECT_FALSE(names_in(text).ok()) << text;
  }
}

}  // namespace
}  // namespace rcuda::image
