#include <gtest/gtest.h>

#include "common/nvml/nvml_api.h"
#include "server/monitor/gpu_monitor.h"
#include "tests/support/sys_tree.h"

namespace rcuda::server {
namespace {

// An artificial /sys with two sockets. The first has a switch with a GPU and an adapter, and a GPU
// at its own root port; the second has a GPU.
class AdaptersTest : public test::SysTreeTest {
 protected:
  void SetUp() override {
    add("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0",
        "sys/bus/pci/devices/0000:03:00.0", "0");
    add("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0",
        "sys/class/infiniband/mlx5_0/device", "0");
    add("pci0000:00/0000:00:02.0/0000:05:00.0", "sys/bus/pci/devices/0000:05:00.0", "0");
    add("pci0000:80/0000:80:01.0/0000:81:00.0", "sys/bus/pci/devices/0000:81:00.0", "1");
  }
};

TEST_F(AdaptersTest, TheWayIsWordedAsNvmlDoes) {
  const std::vector<GpuName> names = {
      {"0000:03:00.0", ""}, {"0000:05:00.0", ""}, {"0000:81:00.0", ""}, {"0000:99:00.0", ""}};
  const std::vector<uint32_t> ways = {NVML_TOPOLOGY_SINGLE, NVML_TOPOLOGY_HOSTBRIDGE,
                                      NVML_TOPOLOGY_SYSTEM};
  GpuSample sample;
  sample.gpus.resize(names.size());
  find_adapters(root_, names, &sample);
  for (size_t i = 0; i < ways.size(); ++i) {
    EXPECT_EQ(sample.gpus[i].told.adapter, "mlx5_0") << i;
    EXPECT_EQ(sample.gpus[i].told.adapter_ancestor, ways[i]) << i;
  }
  EXPECT_EQ(sample.gpus[3].told.adapter, "");  // sysfs does not know this GPU
}

}  // namespace
}  // namespace rcuda::server
