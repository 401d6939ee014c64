#include "common/transport/verbs/pci_distance.h"

#include <gtest/gtest.h>

#include "tests/support/sys_tree.h"

namespace rcuda::transport {
namespace {

namespace fs = std::filesystem;
using Level = PciDistance::Level;

// An artificial /sys with two sockets. The first has a switch with a GPU and an adapter, another
// switch below that one, and an adapter at its own root port. The second has another adapter.
class PciDistanceTest : public test::SysTreeTest {
 protected:
  void SetUp() override {
    const std::string below_switch = "pci0000:00/0000:00:01.0/0000:01:00.0/";
    add(below_switch + "0000:02:00.0/0000:03:00.0", "sys/bus/pci/devices/0000:03:00.0", "0");
    add(below_switch + "0000:02:01.0/0000:04:00.0", "sys/class/infiniband/beside/device", "0");
    add(below_switch + "0000:02:02.0/0000:05:00.0/0000:06:00.0/0000:07:00.0",
        "sys/class/infiniband/deeper/device", "0");
    add("pci0000:00/0000:00:02.0/0000:08:00.0", "sys/class/infiniband/root_port/device", "0");
    add("pci0000:40/0000:40:01.0/0000:41:00.0", "sys/class/infiniband/same_node/device", "0");
    add("pci0000:80/0000:80:01.0/0000:81:00.0", "sys/class/infiniband/far/device", "1");
    add("virtual/net/lo", "sys/class/infiniband/rxe0/device", "-1");
  }

  PciDistance from_gpu(const std::string& adapter) {
    return pci_distance(*pci_device_at(root_, "0000:03:00.0"),
                        *pci_device(root_ / "sys/class/infiniband" / adapter / "device"));
  }

  size_t nearest(const std::vector<std::string>& adapters, const char* gpu = "0000:03:00.0") {
    why_.clear();
    return nearest_adapter(root_, gpu, adapters, &why_);
  }

  std::string why_;
};

TEST_F(PciDistanceTest, LevelsAreTold) {
  EXPECT_EQ(from_gpu("beside").level, Level::kSameSwitch);
  EXPECT_EQ(from_gpu("deeper").level, Level::kSameSwitch);
  EXPECT_EQ(from_gpu("root_port").level, Level::kSameRootComplex);
  EXPECT_EQ(from_gpu("same_node").level, Level::kSameNumaNode);
  EXPECT_EQ(from_gpu("far").level, Level::kFar);
}

TEST_F(PciDistanceTest, LevelsCountBeforeBridges) {
  EXPECT_LT(from_gpu("beside"), from_gpu("deeper"));
  EXPECT_LT(from_gpu("deeper"), from_gpu("root_port"));  // although the path has fewer bridges
  EXPECT_LT(from_gpu("root_port"), from_gpu("same_node"));
  EXPECT_LT(from_gpu("same_node"), from_gpu("far"));
}

TEST_F(PciDistanceTest, AddressesAsCudaWritesThem) {
  ASSERT_TRUE(pci_device_at(root_, "0000:03:00.0"));
  EXPECT_EQ(pci_device_at(root_, "00000000:03:00.0")->address, "0000:03:00.0");
  add("pci0000:80/0000:80:01.0/0000:8a:00.0", "sys/bus/pci/devices/0000:8a:00.0", "1");
  EXPECT_EQ(pci_device_at(root_, "0000:8A:00.0")->numa_node, 1);
  EXPECT_FALSE(pci_device_at(root_, "0000:ff:00.0"));
  EXPECT_FALSE(pci_device_at(root_, ""));
  EXPECT_FALSE(pci_device_at(root_, "../../../etc"));
}

TEST_F(PciDistanceTest, TheNearestIsChosenAndSaidWhy) {
  EXPECT_EQ(nearest({"far", "root_port", "beside", "deeper"}), 2u);
  EXPECT_EQ(why_,
            "it is the nearest of 4 adapters to GPU 0000:03:00.0, behind the same PCIe switch");
  EXPECT_EQ(nearest({"far", "same_node"}), 1u);
}

TEST_F(PciDistanceTest, WithoutADifferenceTheFirstStays) {
  add("pci0000:c0/0000:c0:01.0/0000:c1:00.0", "sys/class/infiniband/far_too/device", "1");
  EXPECT_EQ(nearest({"far", "far_too"}), 0u);
  EXPECT_EQ(why_, "");
  EXPECT_EQ(nearest({"rxe0", "rxe0"}), 0u);  // no PCI device
  EXPECT_EQ(nearest({"far"}), 0u);
  EXPECT_EQ(nearest({"far", "beside"}, "0000:ff:00.0"), 0u);  // no such GPU
  EXPECT_EQ(nearest({"far", "beside"}, ""), 0u);
  EXPECT_EQ(why_, "");
}

TEST_F(PciDistanceTest, AnAdapterWithAPlaceBeatsOneWithout) {
  EXPECT_EQ(nearest({"rxe0", "far"}), 1u);
  EXPECT_NE(why_.find("on different NUMA nodes"), std::string::npos);
}

TEST_F(PciDistanceTest, TheAdapterOfAGpu) {
  const auto near = adapter_near(root_, "00000000:03:00.0");
  ASSERT_TRUE(near);
  EXPECT_EQ(near->name, "beside");
  EXPECT_EQ(near->distance.level, Level::kSameSwitch);
  EXPECT_FALSE(adapter_near(root_, "0000:ff:00.0"));
  add("pci0000:80/0000:80:02.0/0000:82:00.0", "sys/bus/pci/devices/0000:82:00.0", "1");
  EXPECT_EQ(adapter_near(root_, "0000:82:00.0")->name, "far");
  fs::remove_all(root_ / "sys/class");
  EXPECT_FALSE(adapter_near(root_, "0000:03:00.0"));
}

}  // namespace
}  // namespace rcuda::transport
