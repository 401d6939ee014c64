#include "common/base/usable_processors.h"

#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <sched.h>

namespace rcuda {
namespace {

class UsableProcessors : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/rcuda-groups-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    mount_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(mount_); }
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = mount_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string mount_;
};

TEST_F(UsableProcessors, AMaskOfOneProcessorCounts) {
  unsigned seen = 0;
  std::thread([&] {
    cpu_set_t all, one;
    ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
    int first = 0;
    while (!CPU_ISSET(first, &all)) ++first;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    seen = usable_processors();
  }).join();
  EXPECT_EQ(seen, 1u);
}

TEST_F(UsableProcessors, WithoutAFileThereIsNoQuota) {
  EXPECT_EQ(quota_processors(mount_, "0::/\n"), 0u);
  EXPECT_EQ(quota_processors(mount_, "0::/a/b\n4:cpu,cpuacct:/c\nnonsense\n"), 0u);
}

TEST_F(UsableProcessors, AQuotaIsRoundedUp) {
  write("/a/cpu.max", "150000 100000\n");
  EXPECT_EQ(quota_processors(mount_, "0::/a\n"), 2u);
}

TEST_F(UsableProcessors, TheSmallestQuotaOfAllGroupsAboveCounts) {
  write("/cpu.max", "max 100000\n");
  write("/a/cpu.max", "300000 100000\n");
  write("/a/b/cpu.max", "800000 100000\n");
  write("/a/b/c/cpu.max", "max 100000\n");
  EXPECT_EQ(quota_processors(mount_, "0::/a/b/c\n"), 3u);
}

TEST_F(UsableProcessors, AContainerSeesItsGroupAsTheRoot) {
  write("/cpu.max", "400000 100000\n");
  EXPECT_EQ(quota_processors(mount_, "0::/outside/container\n"), 4u);
}

TEST_F(UsableProcessors, TheFirstVersionCountsAsWell) {
  write("/cpu,cpuacct/a/cpu.cfs_quota_us", "200000\n");
  write("/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  write("/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota_processors(mount_, "4:cpu,cpuacct:/a\n3:cpuset:/a\n0::/\n"), 2u);
}

}  // namespace
}  // namespace rcuda
