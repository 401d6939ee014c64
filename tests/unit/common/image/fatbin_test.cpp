#include "common/image/fatbin.h"

#include <cstring>

#include "tests/unit/common/image/fixtures.h"

namespace rcuda::image {
namespace {

std::vector<Entry> read_entries(const std::string& file) {
  Result<std::vector<Entry>> result = entries(bytes_of(file));
  if (!result.ok()) {
    ADD_FAILURE() << result.status().message();
    return {};
  }
  return std::move(*result);
}

const Entry* find(const std::vector<Entry>& list, EntryKind kind) {
  for (const Entry& entry : list) {
    if (entry.kind == kind) return &entry;
  }
  return nullptr;
}

struct Stored {
  const char* file;
  Compression ptx;
  Compression sass;
};

class FatbinStorageTest : public testing::TestWithParam<Stored> {};

TEST_P(FatbinStorageTest, EntriesSayHowTheyAreStored) {
  const std::string file = read_fixture(GetParam().file);
  const std::vector<Entry> list = read_entries(file);
  ASSERT_EQ(list.size(), 2u);
  const Entry* ptx = find(list, EntryKind::kPtx);
  const Entry* sass = find(list, EntryKind::kElf);
  ASSERT_TRUE(ptx != nullptr && sass != nullptr);
  EXPECT_EQ(ptx->compression, GetParam().ptx);
  EXPECT_EQ(sass->compression, GetParam().sass);
  EXPECT_EQ(ptx->sm, 75u);
  EXPECT_EQ(sass->sm, 75u);
  EXPECT_GE(ptx->version_major, 9u);
}

INSTANTIATE_TEST_SUITE_P(
    Modes, FatbinStorageTest,
    testing::Values(Stored{"balance.fatbin", Compression::kZstd, Compression::kNone},
                    Stored{"size.fatbin", Compression::kZstd, Compression::kZstd},
                    Stored{"speed.fatbin", Compression::kLz4, Compression::kNone},
                    Stored{"none.fatbin", Compression::kNone, Compression::kNone},
                    Stored{"debug.fatbin", Compression::kZstd, Compression::kZstd},
                    Stored{"rdc.fatbin", Compression::kZstd, Compression::kZstd}),
    [](const auto& info) {
      const std::string name = info.param.file;
      return name.substr(0, name.find('.'));
    });

TEST(FatbinTest, SpecificImagesAreMarked) {
  const std::string arch = read_fixture("arch_specific.fatbin");
  int specific = 0;
  for (const Entry& entry : read_entries(arch)) {
    EXPECT_EQ(entry.sm, 90u);
    EXPECT_FALSE(entry.family_specific);
    specific += entry.arch_specific;
  }
  EXPECT_EQ(specific, 2);  // SASS and PTX; the third is plain compute_90
  const std::string family = read_fixture("family_specific.fatbin");
  int family_specific = 0;
  for (const Entry& entry : read_entries(family)) family_specific += entry.family_specific;
  EXPECT_GE(family_specific, 1);
}

TEST(FatbinTest, IntermediateCodeIsListed) {
  const std::string file = read_fixture("lto.fatbin");
  const std::vector<Entry> list = read_entries(file);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].kind, EntryKind::kNvvm);
}

TEST(FatbinTest, AContainerMayBeEmpty) {
  std::string file = read_fixture("none.fatbin").substr(0, 16);
  std::memset(file.data() + 8, 0, 8);
  EXPECT_TRUE(read_entries(file).empty());
}

TEST(FatbinTest, RefusesEntriesThatLeaveTheContainer) {
  const std::string good = read_fixture("none.fatbin");
  const auto refused = [&good](size_t offset, auto value) {
    std::string file = good;
    std::memcpy(file.data() + offset, &value, sizeof value);
    return !entries(bytes_of(file)).ok();
  };
  constexpr size_t kEntry = 16;
  EXPECT_TRUE(refused(8, ~0ull));                 // container size
  EXPECT_TRUE(refused(8, uint64_t{70}));          // cuts the first entry
  EXPECT_TRUE(refused(4, uint16_t{2}));           // container version
  EXPECT_TRUE(refused(6, uint16_t{8}));           // container header size
  EXPECT_TRUE(refused(kEntry + 4, uint32_t{0}));  // entry header size
  EXPECT_TRUE(refused(kEntry + 4, ~uint32_t{0}));
  EXPECT_TRUE(refused(kEntry + 8, ~0ull - 63));     // payload size that would overflow
  EXPECT_TRUE(refused(kEntry + 16, ~uint32_t{0}));  // compressed size
}

}  // namespace
}  // namespace rcuda::image
