// The kernel's texts about cgroups, and restored groups. tests/rdma/cgroup_test.py limits real
// sessions.
#include "server/daemon/pool/cgroup.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"

namespace rcuda::server {
namespace {

constexpr char kMounts[] =
    "24 30 0:22 / /proc rw,relatime - proc proc rw\n"
    "25 30 0:23 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "31 24 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

TEST(CgroupTest, ItsPathIsBelowTheMount) {
  EXPECT_EQ(*own_cgroup("0::/system.slice/rcuda.service\n", kMounts),
            "/sys/fs/cgroup/system.slice/rcuda.service");
  EXPECT_EQ(*own_cgroup("0::/\n", kMounts), "/sys/fs/cgroup");
}

TEST(CgroupTest, AMachineMayHaveBothVersions) {
  const char mounts[] =
      "25 30 0:23 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
      "31 24 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
  EXPECT_EQ(*own_cgroup("4:memory:/session/8f\n1:cpu:/\n0::/a\n", mounts),
            "/sys/fs/cgroup/unified/a");
}

TEST(CgroupTest, AMountMayShowAPartOfTheTree) {
  const char mounts[] = "31 24 0:27 /docker/8f /my\\040groups rw - cgroup2 none rw\n";
  EXPECT_EQ(*own_cgroup("0::/docker/8f/inner\n", mounts), "/my groups/inner");
  EXPECT_EQ(*own_cgroup("0::/docker/8f\n", mounts), "/my groups");
  EXPECT_FALSE(own_cgroup("0::/docker/8f0\n", mounts).ok()) << "another one with a longer name";
  EXPECT_FALSE(own_cgroup("0::/../other\n", kMounts).ok()) << "outside of the namespace";
}

TEST(CgroupTest, WithoutVersion2ThereIsNone) {
  EXPECT_EQ(own_cgroup("4:memory:/a\n", kMounts).status().code(), Code::kUnsupported);
  EXPECT_EQ(own_cgroup("0::/a\n", "24 30 0:22 / /proc rw - proc proc rw\n").status().code(),
            Code::kUnsupported);
  EXPECT_FALSE(own_cgroup("", "").ok());
  EXPECT_FALSE(own_cgroup("0::/a\n", "cgroup2 - \n- cgroup2\n").ok());
}

TEST(CgroupTest, AnOwnLimitDiffersFromAMachineWithoutMemory) {
  const OutOfMemory events = parse_memory_events("low 0\nhigh 0\nmax 40\noom 2\noom_kill 1\n");
  EXPECT_EQ(events.kills, 1u);
  EXPECT_EQ(events.limit_hits, 2u);
  EXPECT_EQ(parse_memory_events("").kills, 0u);
  EXPECT_EQ(parse_memory_events("oom_kill").kills, 0u);
}

TEST(CgroupTest, AnotherBuildGoesOnWithTheGroups) {
  const test::TempFolder folder;
  const std::string group = folder.file("worker-4711");
  std::filesystem::create_directory(group);
  const auto groups = Cgroups::restore({folder.file(""), false, {"memory", "pids"}});
  EXPECT_TRUE(groups->has("pids"));
  EXPECT_FALSE(groups->has("cpu"));
  const CarriedCgroups carried = groups->carry();
  EXPECT_EQ(carried.path, folder.file(""));
  EXPECT_EQ(carried.controllers, (std::vector<std::string>{"memory", "pids"}));
  groups->of(4711).reset();  // as when its worker has ended
  EXPECT_FALSE(std::filesystem::exists(group));
}

TEST(CgroupTest, AGroupThatCannotBeUsedIsNamed) {
  for (const char* path : {"/proc", "/no/such/group"}) {
    const auto groups = Cgroups::open(path);
    ASSERT_FALSE(groups.ok());
    EXPECT_NE(groups.status().context().find(path), std::string::npos);
  }
}

}  // namespace
}  // namespace rcuda::server
