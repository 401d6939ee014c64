#include "client/process/registry.h"

#include <gtest/gtest.h>

namespace rcuda::client {
namespace {

Allocation allocation(uint64_t base, size_t bytes, Placement placement = Placement::kDevice) {
  Allocation made;
  made.base = base;
  made.bytes = bytes;
  made.placement = placement;
  return made;
}

TEST(RegistryTest, FindsByAnyAddressInside) {
  Registry registry;
  ASSERT_TRUE(registry.add(allocation(0x1000, 0x100)));
  EXPECT_FALSE(registry.find(0xfff));
  EXPECT_EQ(registry.find(0x1000)->base, 0x1000u);
  EXPECT_EQ(registry.find(0x10ff)->base, 0x1000u);
  EXPECT_FALSE(registry.find(0x1100));
}

TEST(RegistryTest, RefusesWhatOverlaps) {
  Registry registry;
  ASSERT_TRUE(registry.add(allocation(0x1000, 0x100)));
  EXPECT_FALSE(registry.add(allocation(0x1000, 1)));
  EXPECT_FALSE(registry.add(allocation(0x10ff, 0x10)));
  EXPECT_FALSE(registry.add(allocation(0xf00, 0x101)));
  EXPECT_TRUE(registry.add(allocation(0xf00, 0x100)));
  EXPECT_TRUE(registry.add(allocation(0x1100, 0x100)));
  EXPECT_TRUE(registry.overlaps(0x11ff, 1));
  EXPECT_FALSE(registry.overlaps(0x1200, 0x1000));
}

TEST(RegistryTest, KnowsWhoReservedAnAddress) {
  Registry registry;
  auto* const session = reinterpret_cast<Session*>(0x10);
  const AddressWindows windows({{0x1000, 0x1000}});
  registry.grant(windows, session);
  EXPECT_TRUE(registry.reserve(0x1000, 0x100, session));
  EXPECT_FALSE(registry.reservation(0xfff));
  EXPECT_TRUE(registry.reservation(0x1000));
  EXPECT_EQ(registry.reservation(0x10ff)->session, session);
  EXPECT_EQ(registry.reservation(0x10ff)->base, 0x1000u);
  EXPECT_EQ(registry.reservation(0x10ff)->bytes, 0x100u);
  EXPECT_FALSE(registry.reservation(0x1100));
  EXPECT_FALSE(registry.find(0x1000));
  EXPECT_FALSE(registry.unreserve(0x1001));
  EXPECT_EQ(registry.unreserve(0x1000)->bytes, 0x100u);
  EXPECT_FALSE(registry.reservation(0x1000));
}

TEST(RegistryTest, NoAddressBelongsToTwoServers) {
  Registry registry;
  auto* const one = reinterpret_cast<Session*>(0x10);
  auto* const other = reinterpret_cast<Session*>(0x20);
  const auto of = [](Session* session, uint64_t base, Placement placement, size_t bytes = 0x100) {
    Allocation made = allocation(base, bytes, placement);
    made.session = session;
    return made;
  };
  const AddressWindows first({{0x1000, 0x2000}, {0x8000, 0x1000}}), second({{0x4000, 0x4000}});
  registry.grant(first, one);
  registry.grant(second, other);
  EXPECT_FALSE(registry.reserve(0x8fff, 0x100, other));
  EXPECT_FALSE(registry.reserve(0x7f01, 0x100, other)) << "its end is another's";
  EXPECT_FALSE(registry.reserve(0x9000, 0x100, one)) << "nobody's";
  EXPECT_TRUE(registry.reserve(0x7f00, 0x100, other));
  EXPECT_FALSE(registry.add(of(other, 0x7f01, Placement::kDevice)));
  EXPECT_FALSE(registry.add(of(other, 0x7000, Placement::kDevice, 0x3000)));
  EXPECT_FALSE(registry.add(of(other, 0x9000, Placement::kDevice)));
  EXPECT_FALSE(registry.add(of(other, 0x7000, Placement::kDevice, ~size_t{0})));
  EXPECT_TRUE(registry.add(of(other, 0x7f00, Placement::kDevice)));
  EXPECT_TRUE(registry.add(of(one, 0x8f00, Placement::kDevice)));

  ASSERT_TRUE(registry.add(of(one, 0x2000, Placement::kDeviceAsync)));
  EXPECT_FALSE(registry.add(of(other, 0x2080, Placement::kDevice)))
      << "nothing of another is stale";
  EXPECT_EQ(registry.find(0x2000)->session, one);
  EXPECT_TRUE(registry.add(of(one, 0x2080, Placement::kDevice)));
}

TEST(RegistryTest, BufferIdsAreNeverUsedAgain) {
  Registry registry;
  ASSERT_TRUE(registry.add(allocation(0x1000, 0x100)));
  const uint64_t first = registry.find(0x1000)->buffer_id;
  ASSERT_TRUE(registry.remove(0x1000));
  EXPECT_FALSE(registry.remove(0x1000));
  ASSERT_TRUE(registry.add(allocation(0x1000, 0x100)));
  EXPECT_NE(registry.find(0x1000)->buffer_id, first);
}

TEST(RegistryTest, AnAllocationReplacesVariablesOfAnUnloadedModule) {
  Registry registry;
  ASSERT_TRUE(registry.add(allocation(0x1000, 0x10, Placement::kGlobal)));
  ASSERT_TRUE(registry.add(allocation(0x1020, 0x10, Placement::kGlobal)));
  ASSERT_TRUE(registry.add(allocation(0x2000, 0x10, Placement::kGlobal)));
  EXPECT_TRUE(registry.add(allocation(0x1008, 0x100)));
  EXPECT_FALSE(registry.find(0x1000));
  EXPECT_EQ(registry.find(0x1020)->base, 0x1008u);
  EXPECT_TRUE(registry.find(0x2000));
}

TEST(RegistryTest, AnAllocationReplacesMemoryOfADestroyedGraph) {
  Registry registry;
  ASSERT_TRUE(registry.add(allocation(0x1000, 0x100, Placement::kDeviceAsync)));
  EXPECT_TRUE(registry.add(allocation(0x1080, 0x100, Placement::kDeviceAsync)));
  EXPECT_FALSE(registry.find(0x1000));
  EXPECT_TRUE(registry.add(allocation(0x1000, 0x100)));
  EXPECT_FALSE(registry.find(0x1100));
}

TEST(RegistryTest, AContextTakesItsMemoryAlong) {
  Registry registry;
  const auto add = [&](uint64_t base, Placement placement, uint32_t device,
                       wire::ObjectId context) {
    Allocation added = allocation(base, 0x100, placement);
    added.device = device;
    added.context = context;
    ASSERT_TRUE(registry.add(added));
  };
  add(0x1000, Placement::kDevice, 1, 7);
  add(0x2000, Placement::kHost, 1, 7);
  add(0x3000, Placement::kRegistered, 1, 7);
  add(0x4000, Placement::kManaged, 1, 7);
  add(0x5000, Placement::kDeviceAsync, 1, 7);
  add(0x6000, Placement::kMapped, 1, 7);
  add(0x7000, Placement::kDevice, 1, 8);
  add(0x8000, Placement::kDevice, 0, 7);
  add(0x9000, Placement::kHost, 0, 7);
  std::vector<uint64_t> host;
  for (const Allocation& found : registry.remove_context(1, 7)) host.push_back(found.base);
  EXPECT_EQ(host, (std::vector<uint64_t>{0x2000, 0x3000, 0x4000}));
  for (uint64_t base = 0x1000; base <= 0x4000; base += 0x1000) EXPECT_FALSE(registry.find(base));
  for (uint64_t base = 0x5000; base <= 0x9000; base += 0x1000) EXPECT_TRUE(registry.find(base));
}

}  // namespace
}  // namespace rcuda::client
