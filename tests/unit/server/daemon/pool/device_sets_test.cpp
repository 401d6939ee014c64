// The sets of devices for which workers are started, and the variables that select them.
#include "server/daemon/pool/device_sets.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "server/sandbox/device_scope.h"

namespace rcuda::server {
namespace {

using Key = DeviceSets::Key;

WorkerReady three_devices() {
  WorkerReady ready;
  ready.driver = "a driver";
  for (uint32_t i = 0; i < 3; ++i) {
    ready.devices.push_back({i, "a GPU", 1});
    ready.identities.push_back(
        {"GPU-" + std::to_string(i), "0000:0" + std::to_string(i) + ":00.0"});
  }
  return ready;
}

Key key(std::vector<uint32_t> devices) { return devices; }

struct ModeSettings : Settings {
  explicit ModeSettings(const char* mode) {
    EXPECT_TRUE(device_isolation.set(mode, "mode", "the test").ok());
  }
};

TEST(DeviceScopeTest, ItSurvivesTheEnvironment) {
  const DeviceScope scope{{{2, "GPU-a", "nvidia0"}, {3, "GPU-b", ""}}};
  const Result<DeviceScope> read = parse_scope(text_of(scope));
  ASSERT_TRUE(read.ok());
  ASSERT_EQ(read->devices.size(), 2u);
  EXPECT_EQ(read->devices[0].ordinal, 2u);
  EXPECT_EQ(read->devices[0].uuid, "GPU-a");
  EXPECT_EQ(read->devices[0].node, "nvidia0");
  EXPECT_EQ(read->devices[1].node, "");
  EXPECT_TRUE(parse_scope("")->devices.empty());
  for (const char* text : {"1", "1 GPU-a", "x GPU-a -", "1 GPU-a - more", "1 GPU-a nvidiactl",
                           "1 GPU-a ../mem", "1 GPU-a nvidia", ","}) {
    EXPECT_FALSE(parse_scope(text).ok()) << text;
  }
}

TEST(DeviceScopeTest, TheKernelDriverNamesAGpusNode) {
  char folder[] = "/tmp/rcuda-scope-test-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string driver = folder;
  std::filesystem::create_directories(driver + "/gpus/0000:0f:00.0");
  std::ofstream(driver + "/gpus/0000:0f:00.0/information")
      << "Model: \t\t A GPU\nIRQ:   \t\t 97\nDevice Minor: \t 12\nGPU Excluded:\t No\n";
  for (const char* name : {"nvidia12", "nvidia3", "nvidiactl", "nvidia-uvm", "null"}) {
    std::ofstream(driver + "/" + name);
  }
  EXPECT_EQ(node_of("0000:0F:00.0", driver), "nvidia12");
  EXPECT_EQ(node_of("0000:10:00.0", driver), "");
  EXPECT_EQ(gpu_nodes(driver), (std::vector<std::string>{"nvidia12", "nvidia3"}));
  EXPECT_TRUE(gpu_nodes("/no/such/folder").empty());
  std::filesystem::remove_all(driver);
}

TEST(DeviceSetsTest, WorkersOfTheServerServeEverySession) {
  const ModeSettings settings("server");
  DeviceSets sets(settings);
  EXPECT_FALSE(sets.needs_scout()) << "of a machine without NVIDIA's driver";
  EXPECT_EQ(sets.key_of({2}), sets.key_of({0, 1}));
  EXPECT_EQ(sets.wanted(2), (std::vector<Key>{key({}), key({})}));
}

TEST(DeviceSetsTest, AScoutFindsTheNodesOfSomeGpus) {
  using Machine = DeviceSets::Machine;
  ModeSettings all("server"), some("server");
  ASSERT_TRUE(some.devices.set("1", "devices", "the test").ok());
  EXPECT_FALSE(DeviceSets(all, Machine{true, true, true}).needs_scout());
  EXPECT_TRUE(DeviceSets(all, Machine{true, true, false}).needs_scout()) << "it makes the nodes";
  EXPECT_FALSE(DeviceSets(all, Machine{true, false, false}).needs_scout());
  EXPECT_FALSE(DeviceSets(some, Machine{false, true, true}).needs_scout()) << "nothing is hidden";
  DeviceSets sets(some, Machine{true, true, true});
  ASSERT_TRUE(sets.needs_scout());
  WorkerReady scout = three_devices();
  scout.devices.erase(scout.devices.begin());  // the server offers two of the three
  scout.identities.erase(scout.identities.begin());
  sets.learn(scout);
  EXPECT_FALSE(sets.needs_scout());
  EXPECT_EQ(sets.wanted(1), std::vector<Key>{key({})});
  EXPECT_EQ(sets.environment(key({})),
            (std::vector<std::string>{std::string(kScopeVariable) + "=1 GPU-1 -,2 GPU-2 -",
                                      "CUDA_VISIBLE_DEVICES=GPU-1,GPU-2"}));
}

TEST(DeviceSetsTest, WorkersOfASessionHaveItsDevicesOnly) {
  const ModeSettings settings(kIsolateSessions);
  DeviceSets sets(settings);
  ASSERT_TRUE(sets.needs_scout());
  EXPECT_EQ(sets.wanted(4), std::vector<Key>{Key()}) << "one scout, however many are wanted";
  EXPECT_TRUE(sets.environment(Key()).empty());
  sets.learn(three_devices());
  ASSERT_FALSE(sets.needs_scout());
  EXPECT_EQ(sets.wanted(2), (std::vector<Key>{key({0}), key({1})}));
  EXPECT_EQ(sets.wanted(4), (std::vector<Key>{key({0}), key({1}), key({2}), key({0})}));
  EXPECT_TRUE(sets.wanted(0).empty());
  EXPECT_EQ(sets.key_of({2, 0}), key({0, 2}));
  EXPECT_NE(sets.key_of({2, 0}), sets.key_of({2}));
  const std::vector<std::string> variables = sets.environment(key({0, 2}));
  ASSERT_EQ(variables.size(), 2u);
  EXPECT_EQ(variables[0], std::string(kScopeVariable) + "=0 GPU-0 -,2 GPU-2 -");
  EXPECT_EQ(variables[1], "CUDA_VISIBLE_DEVICES=GPU-0,GPU-2");
}

TEST(DeviceSetsTest, IdleWorkersAreForTheLatestSessions) {
  const ModeSettings settings(kIsolateSessions);
  DeviceSets sets(settings);
  sets.learn(three_devices());
  sets.used(key({1, 2}));
  EXPECT_EQ(sets.wanted(2), (std::vector<Key>{key({1, 2}), key({0})}));
  sets.used(key({2}));
  sets.used(key({1, 2}));
  EXPECT_EQ(sets.wanted(3), (std::vector<Key>{key({1, 2}), key({2}), key({0})}));
}

TEST(DeviceSetsTest, WithoutIsolationWorkersAreToldNothing) {
  const ModeSettings settings("commands");
  DeviceSets sets(settings);
  EXPECT_FALSE(sets.needs_scout());
  EXPECT_TRUE(sets.environment(key({})).empty());
}

}  // namespace
}  // namespace rcuda::server
