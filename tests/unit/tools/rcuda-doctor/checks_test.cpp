#include "tools/rcuda-doctor/checks.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <stdlib.h>

namespace rcuda::doctor {
namespace {

namespace fs = std::filesystem;

// An artificial /sys, /proc and /dev.
class DoctorTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "doctorXXXXXX";
    root_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(root_); }

  void file(const std::string& path, const std::string& content) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path, std::ios::binary) << content;
  }

  void add_roce_device(const std::string& state, const std::string& mtu) {
    file("dev/infiniband/rdma_cm", "");
    const std::string port = "sys/class/infiniband/mlx5_0/ports/1/";
    file(port + "state", state + "\n");
    file(port + "link_layer", "Ethernet\n");
    file(port + "rate", "400 Gb/sec (4X NDR)\n");
    file(port + "gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n");
    file(port + "gid_attrs/types/0", "IB/RoCE v1\n");
    file(port + "gids/1", "0000:0000:0000:0000:0000:ffff:0a4d:0001\n");
    file(port + "gid_attrs/types/1", "RoCE v2\n");
    file(port + "gid_attrs/ndevs/1", "eth2\n");
    file(port + "gids/2", "0000:0000:0000:0000:0000:0000:0000:0000\n");
    file("sys/class/net/eth2/mtu", mtu + "\n");
  }

  // Adds a PCI function below the given bridges; `link` is the place where sysfs refers to it.
  void add_pci(const std::string& path, const std::string& link, const std::string& vendor,
               const std::string& kind, const std::string& node) {
    file("sys/devices/" + path + "/vendor", vendor + "\n");
    file("sys/devices/" + path + "/class", kind + "\n");
    file("sys/devices/" + path + "/numa_node", node + "\n");
    fs::create_directories((root_ / link).parent_path());
    fs::create_symlink(root_ / "sys/devices" / path, root_ / link);
  }

  static const Finding* find(const Findings& findings, const std::string& text) {
    for (const Finding& finding : findings) {
      if (finding.what.find(text) != std::string::npos) return &finding;
    }
    return nullptr;
  }

  fs::path root_;
};

TEST_F(DoctorTest, ANodeWithoutDevicesGetsANote) {
  const Findings findings = check_devices(root_);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].verdict, Verdict::kNote);
  EXPECT_FALSE(findings[0].remedy.empty());
}

TEST_F(DoctorTest, AGoodRocePortIsGood) {
  add_roce_device("4: ACTIVE", "9000");
  for (const Finding& finding : check_devices(root_)) {
    EXPECT_EQ(finding.verdict, Verdict::kGood) << finding.what;
  }
  const std::vector<Gid> gids = usable_gids(root_);
  ASSERT_EQ(gids.size(), 2u);
  EXPECT_EQ(gids[1].ipv4, "10.77.0.1");
  EXPECT_EQ(gids[1].index, 1);
  EXPECT_EQ(gids[1].interface, "eth2");
}

TEST_F(DoctorTest, WhatIsWrongWithAPortHasItsMend) {
  add_roce_device("1: DOWN", "1500");
  fs::remove(root_ / "dev/infiniband/rdma_cm");
  const Findings findings = check_devices(root_);
  const Finding* port = find(findings, "DOWN");
  ASSERT_NE(port, nullptr);
  EXPECT_EQ(port->verdict, Verdict::kWarning);
  EXPECT_NE(port->remedy.find("ip link set"), std::string::npos);
  const Finding* mtu = find(findings, "MTU of eth2 is 1500: RDMA packets carry at most 1024 bytes");
  ASSERT_NE(mtu, nullptr);
  EXPECT_EQ(mtu->verdict, Verdict::kWarning);
  const Finding* cm = find(findings, "rdma_cm");
  ASSERT_NE(cm, nullptr);
  EXPECT_EQ(cm->verdict, Verdict::kBad);
}

TEST_F(DoctorTest, AnInfinibandPortThatInitialisesWantsASubnetManager) {
  file("sys/class/infiniband/mlx5_0/ports/1/state", "2: INIT\n");
  file("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
  const Findings findings = check_devices(root_);
  const Finding* port = find(findings, "INIT");
  ASSERT_NE(port, nullptr);
  EXPECT_NE(port->remedy.find("opensm"), std::string::npos);
}

TEST_F(DoctorTest, LockedMemory) {
  EXPECT_EQ(check_memlock({.none = true}, true)[0].verdict, Verdict::kGood);
  const transport::LockedMemoryLimit limit{.none = false, .bytes = 8u << 20};
  const Findings limited = check_memlock(limit, true);
  EXPECT_EQ(check_memlock(limit, false)[0].verdict, Verdict::kGood);
  EXPECT_EQ(limited[0].verdict, Verdict::kBad);
  EXPECT_NE(limited[0].what.find("8 MiB"), std::string::npos);
  EXPECT_NE(limited[0].remedy.find("ulimit -l unlimited"), std::string::npos);
  const Findings large = check_memlock({.none = false, .bytes = 64ull << 30}, true);
  EXPECT_EQ(large[0].verdict, Verdict::kNote);
  EXPECT_NE(large[0].remedy.find("ulimit -l unlimited"), std::string::npos);
}

TEST_F(DoctorTest, GpudirectByEitherModule) {
  EXPECT_EQ(check_gpudirect(root_)[0].verdict, Verdict::kNote);
  file("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.1\n");
  EXPECT_EQ(check_gpudirect(root_)[0].verdict, Verdict::kWarning);
  file("sys/module/nvidia_peermem/refcnt", "0\n");
  EXPECT_EQ(check_gpudirect(root_)[0].verdict, Verdict::kGood);
  fs::remove_all(root_ / "sys/module");
  file("proc/driver/nvidia/version",
       "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.1\n");
  EXPECT_EQ(check_gpudirect(root_)[0].verdict, Verdict::kGood);
}

TEST_F(DoctorTest, PciDistanceAndAcs) {
  const std::string common = "pci0000:00/0000:00:01.0/0000:01:00.0/";
  add_pci(common + "0000:02:00.0/0000:03:00.0", "sys/bus/pci/devices/0000:03:00.0", "0x10de",
          "0x030200", "0");
  add_pci(common + "0000:02:01.0/0000:04:00.0", "sys/class/infiniband/mlx5_0/device", "0x15b3",
          "0x020000", "0");
  add_pci("pci0000:80/0000:80:01.0/0000:81:00.0", "sys/class/infiniband/mlx5_1/device", "0x15b3",
          "0x020000", "1");
  Findings findings = check_pci(root_);
  EXPECT_NE(find(findings, "mlx5_0 are behind the same PCIe switch"), nullptr);
  EXPECT_NE(find(findings, "mlx5_1 are on different NUMA nodes"), nullptr);
  const Finding* hidden = find(findings, "cannot be read");  // the tree has no config space yet
  ASSERT_NE(hidden, nullptr);
  EXPECT_NE(hidden->remedy.find("root"), std::string::npos);

  std::string config(4096, '\0');
  config[0x100] = 0x0d;  // the ACS capability, last in its list
  for (const char* bridge : {"0000:02:00.0", "0000:02:01.0"}) {
    file("sys/devices/" + common + bridge + "/config", config);
  }
  for (const char* bridge : {"0000:80:01.0", "0000:81:00.0"}) {
    file(std::string("sys/devices/pci0000:80/") + bridge + "/config", config);
  }
  EXPECT_EQ(find(check_pci(root_), "sends traffic between GPU 0000:03:00.0 and mlx5_0"), nullptr);
  EXPECT_NE(find(check_pci(root_), "ACS lets GPU 0000:03:00.0 and mlx5_0 communicate"), nullptr);
  config[0x106] = 0x0c;  // requests and completions are redirected
  file("sys/devices/" + common + "0000:02:01.0/config", config);
  findings = check_pci(root_);
  const Finding* acs = find(findings, "ACS of bridge 0000:02:01.0");
  ASSERT_NE(acs, nullptr);
  EXPECT_EQ(acs->verdict, Verdict::kWarning);
  EXPECT_NE(acs->remedy.find("setpci"), std::string::npos);
}

TEST_F(DoctorTest, WithoutGpuOrAdapterThereIsNoDistance) {
  const Findings findings = check_pci(root_);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].verdict, Verdict::kNote);
  EXPECT_NE(findings[0].what.find("no NVIDIA GPU and no RDMA adapter"), std::string::npos);
  EXPECT_FALSE(findings[0].remedy.empty());
}

// Every finding that is not good states a remedy.
TEST_F(DoctorTest, EveryProblemHasItsMend) {
  add_roce_device("1: DOWN", "1500");
  fs::remove(root_ / "dev/infiniband/rdma_cm");
  file("sys/class/infiniband/mlx5_2/ports/1/state", "1: DOWN\n");
  file("sys/class/infiniband/mlx5_2/ports/1/link_layer", "InfiniBand\n");
  file("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.1\n");
  file("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  add_pci("pci0000:00/0000:00:01.0/0000:01:00.0", "sys/bus/pci/devices/0000:01:00.0", "0x10de",
          "0x030200", "0");
  add_pci("pci0000:80/0000:80:01.0/0000:81:00.0", "sys/class/infiniband/mlx5_1/device", "0x15b3",
          "0x020000", "1");
  int problems = 0;
  for (const Findings& findings :
       {check_devices(root_), check_memlock({.none = false, .bytes = 65536}, true),
        check_gpudirect(root_), check_pci(root_), check_huge_pages(root_)}) {
    for (const Finding& finding : findings) {
      if (finding.verdict == Verdict::kGood) continue;
      ++problems;
      EXPECT_FALSE(finding.remedy.empty()) << finding.what;
    }
  }
  EXPECT_GE(problems, 8);
}

TEST_F(DoctorTest, HugePages) {
  file("proc/meminfo", "MemTotal: 1 kB\nHugePages_Total:     512\n");
  EXPECT_EQ(check_huge_pages(root_)[0].verdict, Verdict::kGood);
  file("proc/meminfo", "HugePages_Total:       0\n");
  file("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  EXPECT_EQ(check_huge_pages(root_)[0].verdict, Verdict::kNote);
}

}  // namespace
}  // namespace rcuda::doctor
