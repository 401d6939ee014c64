#include "common/image/image.h"

#include <cstring>

#include <elf.h>

#include "tests/unit/common/image/fixtures.h"

namespace rcuda::image {
namespace {

TEST(ImageTest, MeasuresBareImagesByTheirHeaders) {
  for (const char* name : {"balance.fatbin", "none.fatbin", "debug.fatbin", "sm_75.cubin",
                           "sm_90.cubin", "sm_100.cubin", "sm_120.cubin"}) {
    const std::string file = read_fixture(name);
    // Bytes after the image must not be counted.
    const std::string followed = file + std::string(100, 'x');
    const Result<Image> image = measure(followed.data());
    ASSERT_TRUE(image.ok()) << name << ": " << image.status().message();
    ASSERT_EQ(image->parts.size(), 1u);
    EXPECT_EQ(image->parts[0].size(), file.size()) << name;
    const Result<Image> bounded = inspect(bytes_of(followed));
    ASSERT_TRUE(bounded.ok());
    EXPECT_EQ(bounded->parts[0].size(), file.size());
    EXPECT_EQ(bounded->format, image->format);
  }
}

TEST(ImageTest, TextEndsAtItsNul) {
  const std::string file = read_fixture("sm_75.ptx");
  const Result<Image> image = measure(file.c_str());
  ASSERT_TRUE(image.ok());
  EXPECT_EQ(image->format, Format::kText);
  EXPECT_EQ(image->parts[0].size(), file.size());
  const Result<Image> unterminated = inspect(bytes_of(file).first(10));
  ASSERT_TRUE(unterminated.ok());
  EXPECT_EQ(unterminated->parts[0].size(), 10u);
}

TEST(ImageTest, VersionOneWrapperLeadsToItsContainer) {
  const std::string file = read_fixture("balance.fatbin");
  const FatbinWrapper wrapper{kWrapperMagic, 1, file.data(), nullptr};
  const Result<Image> image = measure(&wrapper);
  ASSERT_TRUE(image.ok()) << image.status().message();
  EXPECT_EQ(image->format, Format::kFatbin);
  ASSERT_EQ(image->parts.size(), 1u);
  EXPECT_EQ(image->parts[0].data(), bytes_of(file).data());
  EXPECT_EQ(image->parts[0].size(), file.size());
}

TEST(ImageTest, VersionTwoWrapperLeadsToTheUnitsContainers) {
  const std::string linked = read_fixture("sass_only.fatbin");
  const std::string first = read_fixture("rdc.fatbin");
  const std::string second = read_fixture("rdc_90.fatbin");
  const void* prelinked[] = {first.data(), second.data(), nullptr};
  const FatbinWrapper wrapper{kWrapperMagic, 2, linked.data(), prelinked};
  const Result<Image> image = measure(&wrapper);
  ASSERT_TRUE(image.ok()) << image.status().message();
  ASSERT_EQ(image->parts.size(), 3u);
  EXPECT_EQ(image->parts[0].size(), linked.size());
  EXPECT_EQ(image->parts[1].size(), first.size());
  EXPECT_EQ(image->parts[2].size(), second.size());

  const FatbinWrapper without_units{kWrapperMagic, 2, linked.data(), nullptr};
  ASSERT_TRUE(measure(&without_units).ok());
  EXPECT_EQ(measure(&without_units)->parts.size(), 1u);
}

TEST(ImageTest, RefusesWhatIsNoImage) {
  EXPECT_FALSE(measure(nullptr).ok());
  for (const char* text : {"", "no image", "\x7f",
                           "\x7f"
                           "EL",
                           "\xb1\x43\x62", "\x50\xed\x55"}) {
    EXPECT_FALSE(measure(text).ok()) << text;
    EXPECT_FALSE(inspect(bytes_of(text)).ok()) << text;
  }
  EXPECT_FALSE(inspect({}).ok());
  const FatbinWrapper unknown_version{kWrapperMagic, 3, nullptr, nullptr};
  EXPECT_FALSE(measure(&unknown_version).ok());
  const FatbinWrapper without_data{kWrapperMagic, 1, nullptr, nullptr};
  EXPECT_FALSE(measure(&without_data).ok());
}

TEST(ImageTest, RefusesWrappersFromElsewhere) {
  const std::string file = read_fixture("balance.fatbin");
  const FatbinWrapper wrapper{kWrapperMagic, 1, file.data(), nullptr};
  EXPECT_FALSE(inspect(std::as_bytes(std::span(&wrapper, 1))).ok());
}

TEST(ImageTest, RefusesTruncatedImages) {
  for (const char* name : {"none.fatbin", "sm_75.cubin", "sm_100.cubin"}) {
    const std::string file = read_fixture(name);
    for (size_t size = 0; size < file.size(); size += size < 256 ? 1 : 97) {
      EXPECT_FALSE(inspect(bytes_of(file).first(size)).ok()) << name << " cut to " << size;
    }
  }
}

TEST(ImageTest, RefusesElfHeadersThatPointOutside) {
  const std::string good = read_fixture("sm_75.cubin");
  Elf64_Ehdr header;
  std::memcpy(&header, good.data(), sizeof header);
  const auto refused = [&good](const Elf64_Ehdr& changed) {
    std::string file = good;
    std::memcpy(file.data(), &changed, sizeof changed);
    return !inspect(bytes_of(file)).ok();
  };
  Elf64_Ehdr changed = header;
  changed.e_shoff = ~0ull - 8;
  EXPECT_TRUE(refused(changed));
  changed = header;
  changed.e_shnum = 0xfeff;
  EXPECT_TRUE(refused(changed));
  changed = header;
  changed.e_shentsize = 1;
  EXPECT_TRUE(refused(changed));
  changed = header;
  changed.e_phoff = good.size();
  changed.e_phnum = 1;
  changed.e_phentsize = sizeof(Elf64_Phdr);
  EXPECT_TRUE(refused(changed));
  changed = header;
  changed.e_ident[EI_CLASS] = ELFCLASS32;
  EXPECT_TRUE(refused(changed));
}

}  // namespace
}  // namespace rcuda::image
