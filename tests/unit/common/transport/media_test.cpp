// The table of media. It must be the only code that knows a medium: this program's table has three
// more media than the product's (tests/support/media_table.cpp), and no other code here knows them.
#include "common/transport/media.h"

#include <cstdlib>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "client/pool/device_list.h"
#include "common/messages/handshake.h"
#include "p2p/plan/planner.h"
#include "tests/support/late_media.h"
#include "tests/support/link_pair.h"

namespace rcuda::transport {
namespace {

TEST(MediaTest, EveryMediumHasANameOfItsOwnThatTravels) {
  std::set<std::string> names;
  for (const Medium& medium : media()) {
    const std::string name = medium.name();
    EXPECT_FALSE(name.empty());
    EXPECT_LE(name.size(), wire::kMaxMediumName);
    EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"), std::string::npos);
    EXPECT_TRUE(names.insert(name).second) << name << " twice";
    EXPECT_FALSE(name == "auto" || name == "ipc") << "means something else in settings";
    EXPECT_EQ(find_medium(name), &medium);
  }
  EXPECT_EQ(find_medium("carrier-pigeon"), nullptr);
  EXPECT_EQ(find_medium(""), nullptr);
}

TEST(MediaTest, TraitsFitTogether) {
  for (const Medium& medium : media()) {
    const MediumTraits& traits = medium.traits;
    EXPECT_TRUE(!traits.shares_pages || traits.reach == Reach::kThisMachine) << medium.name();
    EXPECT_FALSE(traits.shares_pages && (traits.copies_by_cpu || traits.has_adapter));
    EXPECT_FALSE(traits.copies_by_cpu && traits.has_adapter) << medium.name();
  }
}

TEST(MediaTest, TheFirstOfAReachIsThePlainOneAndTheLastUsableTheBest) {
  EXPECT_STREQ(plain_medium(Reach::kThisMachine).name(), "shm");
  EXPECT_STREQ(plain_medium(Reach::kNetwork).name(), "tcp");
  EXPECT_EQ(best_medium(Reach::kThisMachine, -1, "").medium, find_medium("late-shm"));
  EXPECT_EQ(best_medium(Reach::kNetwork, -1, "").medium, find_medium("late-tcp"));
  EXPECT_EQ(medium_names(), "shm, tcp, verbs, late-shm, late-tcp or fickle");
  EXPECT_EQ(medium_names(Reach::kThisMachine), "shm or late-shm");
}

TEST(MediaTest, TheChoiceSaysWhyItIsNoBetterMedium) {
  ::setenv("RCUDA_TEST_FICKLE", "works", 1);
  Choice choice = best_medium(Reach::kNetwork, -1, "");
  EXPECT_EQ(choice.medium, find_medium("fickle"));
  EXPECT_EQ(choice.why, "");
  choice = best_medium(Reach::kNetwork, -1, "it is a secret");
  EXPECT_EQ(choice.medium, find_medium("late-tcp"));
  EXPECT_EQ(choice.why, "fickle does not encrypt, and it is a secret");
  ::setenv("RCUDA_TEST_FICKLE", "unusable", 1);
  choice = best_medium(Reach::kNetwork, -1, "");
  EXPECT_EQ(choice.medium, find_medium("late-tcp"));
  EXPECT_EQ(choice.why, "fickle is not usable here");
  ::unsetenv("RCUDA_TEST_FICKLE");
  EXPECT_EQ(best_medium(Reach::kNetwork, -1, "").why, "this host cannot use fickle");
}

TEST(MediaTest, ALinkHasTheTraitsOfTheTable) {
  for (const Medium& medium : media()) {
    if (medium.usable_over) continue;
    const Result<test::LinkPair> pair = test::make_link_pair(medium);
    ASSERT_TRUE(pair.ok()) << pair.status().message();
    for (const Link* link : {pair->client.get(), pair->server.get()}) {
      EXPECT_STREQ(link->medium(), medium.name());
      EXPECT_EQ(link->traits().reach, medium.traits.reach);
      EXPECT_EQ(link->traits().shares_pages, medium.traits.shares_pages);
      EXPECT_EQ(link->traits().copies_by_cpu, medium.traits.copies_by_cpu);
      EXPECT_EQ(link->traits().has_immediates, medium.traits.has_immediates);
      EXPECT_EQ(link->traits().orders_writes, medium.traits.orders_writes);
      EXPECT_EQ(link->traits().has_adapter, medium.traits.has_adapter);
      EXPECT_EQ(link->traits().moves_in_clear, medium.traits.moves_in_clear);
    }
  }
}

TEST(MediaTest, SettingsTakeEveryMediumOfTheTable) {
  for (const Medium& medium : media()) {
    const auto device = client::parse_device(std::string(medium.name()) + ":node1:3");
    ASSERT_TRUE(device.ok()) << device.status().message();
    EXPECT_EQ(device->medium, &medium);
    EXPECT_EQ(device->host, "node1");
    const auto planner = p2p::parse_planner_options("auto", medium.name());
    ASSERT_TRUE(planner.ok()) << planner.status().message();
    EXPECT_EQ(planner->medium, &medium);
    EXPECT_EQ(planner->route, p2p::route_of(medium.traits));
  }
  const auto unknown = p2p::parse_planner_options("auto", "carrier-pigeon");
  EXPECT_NE(unknown.status().context().find(medium_names()), std::string::npos);
}

}  // namespace
}  // namespace rcuda::transport
