#include "common/image/kernel_layout.h"

#include <map>

#include "common/image/cubin.h"
#include "common/image/ptx_kernels.h"
#include "tests/unit/common/image/fixtures.h"

namespace rcuda::image {
namespace {

using Parameters = std::vector<std::pair<uint32_t, uint32_t>>;  // offset, size

Parameters parameters_of(const KernelLayout& kernel) {
  Parameters found;
  for (const KernelParameter& p : kernel.parameters)
    found.emplace_back(p.offset_bytes, p.size_bytes);
  return found;
}

std::map<std::string, Parameters> by_name(const std::vector<KernelLayout>& kernels) {
  std::map<std::string, Parameters> found;
  for (const KernelLayout& kernel : kernels) found[kernel.name] = parameters_of(kernel);
  EXPECT_EQ(found.size(), kernels.size());
  return found;
}

std::map<std::string, Parameters> layouts_of(const std::string& fixture, uint32_t sm) {
  const std::string file = read_fixture(fixture);
  const Result<Image> image = inspect(bytes_of(file));
  EXPECT_TRUE(image.ok()) << fixture;
  return image.ok() ? by_name(kernel_layouts(*image, sm)) : std::map<std::string, Parameters>();
}

// The layout that nvcc's assembler gives to the same kernels.
std::map<std::string, Parameters> expected() {
  const std::string file = read_fixture("sm_90.cubin");
  const auto kernels = cubin_kernels(bytes_of(file));
  EXPECT_TRUE(kernels.ok());
  auto found = by_name(*kernels);
  EXPECT_EQ(found.size(), 3u);
  EXPECT_EQ(found["large"], (Parameters{{0, 8}, {8, 5000}, {5008, 4}}));
  return found;
}

TEST(KernelLayoutTest, EveryFormOfAnImageSaysTheSame) {
  for (const char* fixture :
       {"sm_75.ptx", "sm_75.cubin", "sm_120.cubin", "balance.fatbin", "size.fatbin", "speed.fatbin",
        "none.fatbin", "debug.fatbin", "rdc.fatbin", "arch_specific.fatbin", "ptx_only.fatbin",
        "sass_only.fatbin", "several.fatbin"}) {
    for (const uint32_t sm : {75u, 90u, 121u, 0u}) {
      EXPECT_EQ(layouts_of(fixture, sm), expected()) << fixture << " on " << sm;
    }
  }
}

TEST(KernelLayoutTest, WhatCannotBeReadHasNoKernels) {
  EXPECT_TRUE(layouts_of("lto.fatbin", 90).empty());
  const std::string text = "nothing of PTX";
  EXPECT_TRUE(kernel_layouts({Format::kText, 0, {bytes_of(text)}}, 90).empty());
}

Parameters parameters_of_text(const std::string& list) {
  const auto kernels = ptx_kernels(".visible .entry k(" + list + ") { ret; }");
  EXPECT_TRUE(kernels.ok()) << list;
  if (!kernels.ok() || kernels->size() != 1) return {};
  EXPECT_EQ((*kernels)[0].name, "k");
  return parameters_of((*kernels)[0]);
}

TEST(PtxKernelsTest, ParametersLieAtTheirAlignment) {
  EXPECT_EQ(parameters_of_text(""), Parameters());
  EXPECT_EQ(parameters_of_text(".param .u8 a, .param .u64 b, .param .f32 c"),
            (Parameters{{0, 1}, {8, 8}, {16, 4}}));
  EXPECT_EQ(parameters_of_text(".param .b8 a, .param .align 16 .b8 b[20], .param .u16 c"),
            (Parameters{{0, 1}, {16, 20}, {36, 2}}));
  EXPECT_EQ(parameters_of_text(".param .align 4 .b8 a[0x0C], .param .b128 b"),
            (Parameters{{0, 12}, {16, 16}}));
  // The alignment of a pointer's target is not the pointer's alignment.
  EXPECT_EQ(parameters_of_text(".param .u32 a, .param .u64 .ptr .global .align 128 b"),
            (Parameters{{0, 4}, {8, 8}}));
  EXPECT_EQ(parameters_of_text(".param.u32 a , // the first, not .param .u64 x\n"
                               "/* ) */ .param.u64 b"),
            (Parameters{{0, 4}, {8, 8}}));
}

TEST(PtxKernelsTest, OnlyEntriesAreKernels) {
  const auto kernels = ptx_kernels(
      ".version 8.0\n.target sm_90\n// .entry commented()\n.global .b8 text[] = {46};\n"
      ".func (.param .b32 r) helper(.param .b32 x) { ret; }\n.entry first { ret; }\n"
      ".file 1 \"a.entry b.cu\"\n.weak .entry second(.param .u32 n)\n.maxntid 8\n{ ret; }");
  ASSERT_TRUE(kernels.ok());
  ASSERT_EQ(kernels->size(), 2u);
  EXPECT_EQ((*kernels)[0].name, "first");
  EXPECT_EQ((*kernels)[1].name, "second");
  EXPECT_EQ((*kernels)[1].parameter_bytes, 4u);
}

TEST(PtxKernelsTest, MalformedListsAreRefused) {
  for (const char* text :
       {".entry", ".entry (", ".entry k(", ".entry k(.param", ".entry k(.param .u32",
        ".entry k(.param a)", ".entry k(.param .u32 a, b)", ".entry k(.param .b8 a[99999999999])",
        ".entry k(.param .align 3 .b8 a[4])", ".entry k(.param .align 0 .b8 a[4])",
        ".entry k(.param .b64 a[9000], .param .b8 b[9000])", ".entry k(.param .b8 a[4",
        ".entry k(.param .u12 a)", ".entry k(\"", ".entry k(/*"}) {
    EXPECT_FALSE(ptx_kernels(text).ok()) << text;
  }
}

}  // namespace
}  // namespace rcuda::image
