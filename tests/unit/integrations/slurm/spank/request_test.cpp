#include "integrations/slurm/spank/request.h"

#include <gtest/gtest.h>

namespace rcuda::slurm {
namespace {

using Devices = std::vector<uint32_t>;

TEST(RequestTest, ACountAndAType) {
  std::string error;
  EXPECT_EQ(parse_request("2", &error)->count, 2u);
  EXPECT_EQ(parse_request("2", &error)->type, "");
  EXPECT_EQ(parse_request("16:h100_80-gb", &error)->count, 16u);
  EXPECT_EQ(parse_request("16:h100_80-gb", &error)->type, "h100_80-gb");
  for (const char* text : {"", "0", "-1", "two", "2x", "2:", ":h100", "2:h100:1", "2:a b", "2:a,b",
                           "100001", "99999999999"}) {
    error.clear();
    EXPECT_FALSE(parse_request(text, &error)) << text;
    EXPECT_NE(error.find("--rcuda=" + std::string(text)), std::string::npos) << error;
  }
}

TEST(RequestTest, Memory) {
  std::string error;
  EXPECT_EQ(parse_memory("512M", &error), 512u);
  EXPECT_EQ(parse_memory("20G", &error), 20u * 1024);
  EXPECT_EQ(parse_memory("1T", &error), 1024u * 1024);
  // The same forms as for all other sizes (common/base/units.h).
  for (const char* text : {"20GB", "20GiB", "20g", "20 GiB", "20480M", "21474836480"}) {
    EXPECT_EQ(parse_memory(text, &error), 20u * 1024) << text;
  }
  EXPECT_EQ(parse_memory("2.5G", &error), 2560u);
  for (const char* text : {"", "G", "20", "0G", "-1G", "1023K", "20X", "99999999999999999T"}) {
    EXPECT_FALSE(parse_memory(text, &error)) << text;
  }
}

TEST(RequestTest, AGrantOfSeveralServers) {
  const auto grant = parse_grant("rcuda: 1a2b3c4d gpu1:0-2,6 [fe80::1]@9000:3");
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->lease, "1a2b3c4d");
  EXPECT_EQ(grant->devices, "gpu1:0,gpu1:1,gpu1:2,gpu1:6,[fe80::1]@9000:3");
  EXPECT_EQ(grant->count, 5u);
  EXPECT_EQ(parse_grant(grant->text)->devices, grant->devices);
  EXPECT_EQ(parse_grant("rcuda: 1a2b3c4d gpu1:4294967295")->devices, "gpu1:4294967295");
}

// An AdminComment may be any text: one of the site, or what rcuda-slurm writes about a job that
// waits or has ended.
TEST(RequestTest, WhatIsNoGrant) {
  for (const char* text :
       {"", "rcuda:", "rcuda: 1a2b3c4d", "rcuda: 1a2b3c4d ", "rcuda: 1A2B3C4D gpu1:0",
        "rcuda: 1a2b3c4d gpu1", "rcuda: 1a2b3c4d :0", "rcuda: 1a2b3c4d gpu1:x",
        "rcuda: 1a2b3c4d gpu1:3-1", "rcuda: 1a2b3c4d gpu1:0-60000 gpu2:0-60000",
        "rcuda: 1a2b3c4d gpu1:0-4294967295",
        "rcuda: 1a2b3c4d gpu1:", "rcuda: sessions=1 device_seconds=2.000",
        "a comment 1a2b3c4d gpu1:0", "rcuda: the job asks for 2 GPUs of type h100; available: 1"}) {
    EXPECT_FALSE(parse_grant(text)) << text;
  }
}

Place task_of(uint32_t task, uint32_t tasks, uint32_t node, uint32_t nodes) {
  return {.node = node, .nodes = nodes, .task = task, .tasks = tasks};
}

TEST(ShareTest, TasksOfANodeSeeItsPart) {
  EXPECT_EQ(share(4, Bind::kNode, task_of(0, 4, 0, 1)), (Devices{0, 1, 2, 3}));
  EXPECT_EQ(share(4, Bind::kNode, task_of(1, 4, 0, 2)), (Devices{0, 1}));
  EXPECT_EQ(share(4, Bind::kNode, task_of(2, 4, 1, 2)), (Devices{2, 3}));
  EXPECT_EQ(share(4, Bind::kNode, task_of(0, 3, 0, 3)), (Devices{0}));
  EXPECT_EQ(share(4, Bind::kNode, task_of(2, 3, 2, 3)), (Devices{2, 3}));
}

TEST(ShareTest, EachTaskSeesItsOwn) {
  for (uint32_t task = 0; task < 4; ++task) {
    EXPECT_EQ(share(4, Bind::kTask, task_of(task, 4, task / 2, 2)), Devices{task});
  }
  EXPECT_EQ(share(8, Bind::kTask, task_of(3, 4, 1, 2)), (Devices{6, 7}));
}

TEST(ShareTest, MorePartsThanDevicesShareInTurn) {
  EXPECT_EQ(share(2, Bind::kTask, task_of(0, 4, 0, 1)), Devices{0});
  EXPECT_EQ(share(2, Bind::kTask, task_of(3, 4, 0, 1)), Devices{1});
  EXPECT_EQ(share(1, Bind::kNode, task_of(7, 8, 3, 4)), Devices{0});
}

TEST(ShareTest, EveryDeviceIsSomebodys) {
  for (uint32_t count = 1; count < 20; ++count) {
    for (uint32_t tasks = 1; tasks <= count; ++tasks) {
      Devices all;
      for (uint32_t task = 0; task < tasks; ++task) {
        const Devices part = share(count, Bind::kTask, task_of(task, tasks, 0, 1));
        EXPECT_FALSE(part.empty());
        all.insert(all.end(), part.begin(), part.end());
      }
      ASSERT_EQ(all.size(), count);
      for (uint32_t i = 0; i < count; ++i) EXPECT_EQ(all[i], i);
    }
  }
}

TEST(ShareTest, AJobSeesAll) {
  EXPECT_EQ(visible_devices(share(3, Bind::kJob, task_of(2, 4, 1, 2))), "0,1,2");
  EXPECT_EQ(visible_devices({}), "");
}

}  // namespace
}  // namespace rcuda::slurm
