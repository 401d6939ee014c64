// Unit tests of the small parts: arenas, boxes, NUMA nodes, arrivals.
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "p2p/link/peer_link.h"
#include "p2p/staging/arena.h"
#include "p2p/staging/numa.h"
#include "p2p/staging/shape.h"

namespace rcuda::p2p {
namespace {

class ArenaTest : public testing::TestWithParam<Arena::Fit> {};
INSTANTIATE_TEST_SUITE_P(, ArenaTest, testing::Values(Arena::Fit::kFirst, Arena::Fit::kNext));

TEST_P(ArenaTest, BlocksNeverOverlapAndAllComeBack) {
  std::mt19937 random(3);
  const uint64_t bytes = 1 << 20;
  Arena arena(bytes, GetParam());
  std::map<uint64_t, uint64_t> out;
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 2 == 0) {
      const uint64_t want = 1 + random() % (random() % 8 == 0 ? bytes : 20'000);
      const auto offset = arena.reserve(want);
      if (!offset) continue;
      ASSERT_EQ(*offset % Arena::kAlignment, 0u);
      ASSERT_LE(*offset + want, bytes);
      const auto next = out.lower_bound(*offset);
      if (next != out.end()) {
        ASSERT_LE(*offset + want, next->first);
      }
      if (next != out.begin()) {
        ASSERT_LE(std::prev(next)->first + std::prev(next)->second, *offset);
      }
      out[*offset] = want;
    } else if (!out.empty()) {
      auto victim = out.begin();
      std::advance(victim, random() % out.size());
      arena.release(victim->first, victim->second);
      out.erase(victim);
    }
  }
  for (const auto& [offset, size] : out) arena.release(offset, size);
  EXPECT_TRUE(arena.reserve(bytes));
  EXPECT_FALSE(arena.reserve(1));
}

TEST(ArenaFitTest, FirstTakesTheSamePlaceAgainAndNextAnother) {
  const auto places = [](Arena::Fit fit) {
    Arena arena(4096, fit);
    std::vector<uint64_t> places;
    for (int i = 0; i < 4; ++i) {
      places.push_back(arena.reserve(1500).value());
      arena.release(places.back(), 1500);
    }
    return places;
  };
  EXPECT_EQ(places(Arena::Fit::kFirst), (std::vector<uint64_t>{0, 0, 0, 0}));
  EXPECT_EQ(places(Arena::Fit::kNext), (std::vector<uint64_t>{0, 1536, 0, 1536}));
}

// Fit::kNext also finds holes before the current position.
TEST(ArenaFitTest, NextGoesBackToTheFirstHoleThatIsLargeEnough) {
  Arena arena(4096, Arena::Fit::kNext);
  EXPECT_EQ(arena.reserve(1024), 0u);
  EXPECT_EQ(arena.reserve(2048), 1024u);
  arena.release(0, 1024);
  EXPECT_EQ(arena.reserve(512), 3072u);
  EXPECT_EQ(arena.reserve(1024), 0u);
  EXPECT_FALSE(arena.reserve(1024));
  EXPECT_EQ(arena.reserve(512), 3584u);
}

TEST(ShapeTest, ChecksPitchesAndOverflow) {
  EXPECT_TRUE((Shape{4096, 100, 3, 2, 128, 512}.check().ok()));
  EXPECT_FALSE((Shape{4096, 100, 3, 2, 99, 512}.check().ok()));
  EXPECT_FALSE((Shape{4096, 100, 3, 2, 128, 300}.check().ok()));
  EXPECT_FALSE((Shape{UINT64_MAX - 10, 100}.check().ok()));
  EXPECT_FALSE((Shape{0, UINT64_MAX, 2, 1, UINT64_MAX}.check().ok()));
  EXPECT_FALSE((Shape{0, 1ull << 40, 1ull << 40, 1, 1ull << 40}.check().ok()));
  EXPECT_TRUE((Shape{0, 0, 5, 5}.check().ok()));
  EXPECT_TRUE((Shape{0, 8, 4, 1, 8}.contiguous()));
  EXPECT_TRUE((Shape{0, 8, 4, 2, 8, 32}.contiguous()));
  EXPECT_FALSE((Shape{0, 8, 4, 2, 8, 40}.contiguous()));
}

TEST(ShapeTest, TheExtentEndsWithTheLastByte) {
  EXPECT_EQ(Shape::plain(4096, 100).extent_bytes(), 100u);
  EXPECT_EQ((Shape{4096, 8, 3, 1, 64}.extent_bytes()), 2u * 64 + 8);
  EXPECT_EQ((Shape{4096, 8, 3, 2, 64, 1000}.extent_bytes()), 1000u + 2 * 64 + 8);
  EXPECT_EQ((Shape{4096, 8, 0, 2, 64, 1000}.extent_bytes()), 0u);
}

// Any range of any shape is packed exactly, with at most five boxes.
TEST(ShapeTest, BoxesCoverAnyRange) {
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    Shape shape;
    shape.width_bytes = 1 + random() % 9;
    shape.height = 1 + random() % 5;
    shape.depth = 1 + random() % 4;
    shape.pitch_bytes = shape.width_bytes + random() % 3;
    shape.slice_bytes = shape.pitch_bytes * shape.height + random() % 4;
    std::vector<uint8_t> memory(shape.slice_bytes * shape.depth);
    for (auto& byte : memory) byte = static_cast<uint8_t>(random());
    shape.address = reinterpret_cast<uint64_t>(memory.data());
    std::vector<uint8_t> packed;
    for (uint64_t z = 0; z < shape.depth; ++z) {
      for (uint64_t y = 0; y < shape.height; ++y) {
        for (uint64_t x = 0; x < shape.width_bytes; ++x) {
          packed.push_back(memory[z * shape.slice_bytes + y * shape.pitch_bytes + x]);
        }
      }
    }
    const uint64_t begin = random() % packed.size();
    const uint64_t bytes = 1 + random() % (packed.size() - begin);
    std::vector<uint8_t> out(bytes, 0);
    const Boxes boxes =
        boxes_of(shape, begin, bytes, reinterpret_cast<uint64_t>(out.data()), Direction::kPack);
    uint64_t covered = 0;
    for (const CopyBox& box : boxes.span()) {
      covered += box.width_bytes * box.rows * box.slices;
      for (uint64_t z = 0; z < box.slices; ++z) {
        for (uint64_t y = 0; y < box.rows; ++y) {
          std::memcpy(reinterpret_cast<void*>(box.destination + z * box.destination_slice +
                                              y * box.destination_pitch),
                      reinterpret_cast<const void*>(box.source + z * box.source_slice +
                                                    y * box.source_pitch),
                      box.width_bytes);
        }
      }
    }
    ASSERT_EQ(covered, bytes);
    ASSERT_TRUE(std::equal(out.begin(), out.end(), packed.begin() + static_cast<long>(begin)));
  }
}

TEST(NumaTest, SurvivesTheAbsenceOfSysfs) {
  EXPECT_FALSE(run_on_numa_node(1, "/nowhere"));
  EXPECT_FALSE(run_on_numa_node(-1));
}

TEST(ArrivalsTest, AChunkIsCompleteWhenAllItsBytesHaveCome) {
  Arrivals arrivals;
  EXPECT_FALSE(*arrivals.complete(1, 100));
  ASSERT_TRUE(arrivals.add(1, 60).ok());
  ASSERT_TRUE(arrivals.add(2, 100).ok());  // before its announcement
  EXPECT_FALSE(*arrivals.complete(1, 100));
  EXPECT_TRUE(*arrivals.complete(2, 100));
  EXPECT_FALSE(*arrivals.complete(2, 100));
  ASSERT_TRUE(arrivals.add(1, 40).ok());
  EXPECT_TRUE(*arrivals.complete(1, 100));
  ASSERT_TRUE(arrivals.add(3, 101).ok());
  EXPECT_EQ(arrivals.complete(3, 100).status().code(), Code::kProtocol);
}

TEST(ArrivalsTest, APeerThatBeginsTooMuchIsWrong) {
  Arrivals arrivals;
  Status status;
  for (uint64_t immediate = 1; status.ok() && immediate < 1'000'000; ++immediate) {
    status = arrivals.add(immediate, 1);
  }
  EXPECT_EQ(status.code(), Code::kProtocol);
}

}  // namespace
}  // namespace rcuda::p2p
