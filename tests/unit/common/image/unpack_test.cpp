#include "common/image/unpack.h"

#include <cstring>

#include "tests/unit/common/image/fixtures.h"

namespace rcuda::image {
namespace {

Entry make_ptx(uint32_t sm, char suffix = ' ') {
  Entry entry;
  entry.kind = EntryKind::kPtx;
  entry.sm = sm;
  entry.arch_specific = suffix == 'a';
  entry.family_specific = suffix == 'f';
  return entry;
}

std::vector<std::string> units_of(const std::string& file, uint32_t sm) {
  const Result<Image> image = inspect(bytes_of(file));
  if (!image.ok()) {
    ADD_FAILURE() << image.status().message();
    return {};
  }
  Result<std::vector<std::string>> units = ptx_units(*image, sm);
  if (!units.ok()) {
    ADD_FAILURE() << units.status().message();
    return {};
  }
  return std::move(*units);
}

std::string ptx_of(const std::string& fixture, uint32_t sm = 90) {
  const std::vector<std::string> units = units_of(read_fixture(fixture), sm);
  EXPECT_EQ(units.size(), 1u);
  return units.empty() ? "" : units[0];
}

TEST(UnpackTest, EveryModeUnpacksToTheSameText) {
  const std::string text = ptx_of("none.fatbin");
  EXPECT_NE(text.find(".target sm_75"), std::string::npos);
  EXPECT_NE(text.find(".entry no_parameters"), std::string::npos);
  EXPECT_NE(text.back(), '\0');
  EXPECT_EQ(ptx_of("balance.fatbin"), text);
  EXPECT_EQ(ptx_of("size.fatbin"), text);
  EXPECT_EQ(ptx_of("speed.fatbin"), text);
  EXPECT_NE(ptx_of("debug.fatbin").find("debug"), std::string::npos);
}

TEST(UnpackTest, SassUnpacksToAnElfImage) {
  for (const char* name : {"balance.fatbin", "size.fatbin", "debug.fatbin", "sass_only.fatbin"}) {
    const std::string file = read_fixture(name);
    const auto list = entries(bytes_of(file));
    ASSERT_TRUE(list.ok());
    for (const Entry& entry : *list) {
      if (entry.kind != EntryKind::kElf) continue;
      const Result<std::string> elf = decompress(entry);
      ASSERT_TRUE(elf.ok()) << name << ": " << elf.status().message();
      EXPECT_EQ(elf->size(), entry.size_bytes);
      EXPECT_TRUE(inspect(bytes_of(*elf)).ok());
    }
  }
}

TEST(UnpackTest, ChoosesTheNewestPtxNotAboveTheDevice) {
  const std::string file = read_fixture("several.fatbin");
  EXPECT_NE(units_of(file, 75).at(0).find(".target sm_75"), std::string::npos);
  EXPECT_NE(units_of(file, 89).at(0).find(".target sm_75"), std::string::npos);
  EXPECT_NE(units_of(file, 90).at(0).find(".target sm_90"), std::string::npos);
  EXPECT_NE(units_of(file, 103).at(0).find(".target sm_90"), std::string::npos);
  EXPECT_NE(units_of(file, 120).at(0).find(".target sm_120"), std::string::npos);
}

TEST(UnpackTest, TakesAnyPtxWhenAllAreAboveTheDevice) {
  EXPECT_NE(ptx_of("ptx_only.fatbin", 75).find(".target sm_90"), std::string::npos);
}

TEST(UnpackTest, SpecificPtxRunsOnlyWhereItMay) {
  const std::vector<Entry> list = {make_ptx(80), make_ptx(90), make_ptx(90, 'a'),
                                   make_ptx(100, 'f'), make_ptx(103, 'a')};
  EXPECT_EQ(select_ptx(list, 80), &list[0]);
  EXPECT_EQ(select_ptx(list, 90), &list[2]);
  EXPECT_EQ(select_ptx(list, 100), &list[3]);
  EXPECT_EQ(select_ptx(list, 103), &list[4]);
  EXPECT_EQ(select_ptx(list, 110), &list[1]);  // another family
  EXPECT_EQ(select_ptx(list, 75), &list[0]);   // none fits: the oldest
  EXPECT_EQ(select_ptx({}, 90), nullptr);
}

TEST(UnpackTest, ImagesWithoutPtxFitNothing) {
  for (const char* name : {"sass_only.fatbin", "lto.fatbin", "sm_90.cubin"}) {
    const std::string file = read_fixture(name);
    const Result<Image> image = inspect(bytes_of(file));
    ASSERT_TRUE(image.ok());
    const auto units = ptx_units(*image, 90);
    ASSERT_FALSE(units.ok());
    EXPECT_EQ(units.status().code(), Code::kNotFound) << name;
  }
}

TEST(UnpackTest, TextIsItsOwnUnit) {
  const std::string file = read_fixture("sm_75.ptx");
  EXPECT_EQ(units_of(file, 90).at(0), file);
}

TEST(UnpackTest, LinkedProgramsGiveOneUnitPerTranslationUnit) {
  const std::string linked = read_fixture("sass_only.fatbin");
  const std::string first = read_fixture("rdc.fatbin");
  const std::string second = read_fixture("rdc_90.fatbin");
  const void* prelinked[] = {first.data(), second.data(), nullptr};
  const FatbinWrapper wrapper{kWrapperMagic, 2, linked.data(), prelinked};
  const Result<std::vector<std::string>> units = ptx_units(*measure(&wrapper), 90);
  ASSERT_TRUE(units.ok()) << units.status().message();
  ASSERT_EQ(units->size(), 2u);
  EXPECT_NE((*units)[0].find(".target sm_75"), std::string::npos);
  EXPECT_NE((*units)[1].find(".target sm_90"), std::string::npos);
}

// Damages the PTX entry of a file and expects an error.
void expect_damage_is_noticed(const std::string& fixture, size_t offset_in_entry, uint64_t value) {
  std::string file = read_fixture(fixture);
  const std::vector<Entry> list = *entries(bytes_of(file));
  for (const Entry& entry : list) {
    if (entry.kind != EntryKind::kPtx) continue;
    // Headers with options are longer than 64 bytes: walk from the container's start.
    size_t at = 16;
    while (true) {
      uint32_t header_bytes;
      uint64_t payload_bytes;
      std::memcpy(&header_bytes, file.data() + at + 4, 4);
      std::memcpy(&payload_bytes, file.data() + at + 8, 8);
      if (bytes_of(file).data() + at + header_bytes == entry.payload.data()) break;
      at += header_bytes + payload_bytes;
    }
    std::memcpy(file.data() + at + offset_in_entry, &value, sizeof value);
    break;
  }
  const auto damaged = entries(bytes_of(file));
  ASSERT_TRUE(damaged.ok());
  const auto text = decompress(*select_ptx(*damaged, 90));
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.status().code(), Code::kInvalidArgument);
}

TEST(UnpackTest, SizesThatThePayloadCannotHoldAreRefused) {
  constexpr size_t kDecompressedBytes = 0x38;
  for (const char* name : {"balance.fatbin", "speed.fatbin"}) {
    for (const uint64_t size : {~0ull, 1ull << 40, 1ull << 30, 1ull << 24, 1ull}) {
      SCOPED_TRACE(std::string(name) + " " + std::to_string(size));
      expect_damage_is_noticed(name, kDecompressedBytes, size);
    }
  }
}

// The frame and the entry state the same unpacked size. The frame is too short to unpack to that
// size.
TEST(UnpackTest, AZstdFrameTooShortForItsSizeIsRefusedBeforeMemoryIsTaken) {
  std::string frame("\x28\xB5\x2F\xFD\xA0\x00\x00\x00\x40\x03\x00\x10\x00", 13);
  Entry entry;
  entry.kind = EntryKind::kPtx;
  entry.compression = Compression::kZstd;
  entry.size_bytes = 1u << 30;
  entry.payload = bytes_of(frame);
  const auto text = decompress(entry);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.status().context(), "damaged fatbin entry: wrong size of the zstd frame");
}

TEST(UnpackTest, ZstdUnpacksWhatIsOneByteRepeated) {
  // A frame of a single block, 128 KiB of 'x': the best ratio that the format allows.
  std::string frame("\x28\xB5\x2F\xFD\xA0\x00\x00\x02\x00\x03\x00\x10x", 13);
  Entry entry;
  entry.kind = EntryKind::kPtx;
  entry.compression = Compression::kZstd;
  entry.size_bytes = 128u << 10;
  entry.payload = bytes_of(frame);
  const auto text = decompress(entry);
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_EQ(*text, std::string(128u << 10, 'x'));
}

TEST(UnpackTest, DamagedPayloadsAreNoticedOrHarmless) {
  for (const char* name : {"balance.fatbin", "speed.fatbin", "size.fatbin"}) {
    const std::string good = read_fixture(name);
    for (size_t i = 80; i < good.size(); i += 11) {
      std::string file = good;
      file[i] = static_cast<char>(file[i] ^ 0x55);
      const auto list = entries(bytes_of(file));
      if (!list.ok()) continue;
      for (const Entry& entry : *list) {
        const auto content = decompress(entry);
        if (content.ok() && entry.compression != Compression::kNone) {
          EXPECT_LE(content->size(), entry.size_bytes);
        }
      }
    }
  }
}

}  // namespace
}  // namespace rcuda::image
