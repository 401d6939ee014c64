#include "tools/rcuda-smi/topology.h"

#include <gtest/gtest.h>

#include "common/nvml/nvml_api.h"

namespace rcuda::smi {
namespace {

wire::GpuReport::Gpu gpu(uint32_t ordinal, const std::string& adapter, uint32_t to_adapter) {
  wire::GpuReport::Gpu gpu;
  gpu.ordinal = ordinal;
  gpu.paths = {{NVML_TOPOLOGY_SYSTEM, {}}, {NVML_TOPOLOGY_SYSTEM, {}}};
  gpu.adapter = adapter;
  gpu.adapter_ancestor = to_adapter;
  return gpu;
}

Look server(const std::string& name, const std::string& host) {
  Look look;
  look.server = name;
  look.gpus.host = host;
  look.gpus.gpus = {gpu(0, "mlx5_0", NVML_TOPOLOGY_SINGLE), gpu(1, "mlx5_1", NVML_TOPOLOGY_NODE)};
  return look;
}

TEST(TopologyTest, GpusOfOneMachineMayShareAnAdapter) {
  Look one_adapter = server("a:1", "first");
  one_adapter.gpus.gpus[1].adapter = "mlx5_0";
  const std::string matrix =
      matrix_of({one_adapter, server("a:2", "first"), server("b:1", "second")});
  EXPECT_TRUE(
      matrix.starts_with("              0      1      2      3      4      5   NIC\n"
                         "  0 a:1 0     X    SYS*  HOST*  HOST    NET    NET   mlx5_0 PIX\n"
                         "  1 a:1 1   SYS*     X   HOST*  HOST    NET    NET   mlx5_0 NODE\n"
                         "  2 a:2 0  HOST*  HOST*     X    SYS    NET    NET   mlx5_0 PIX\n"
                         "  3 a:2 1  HOST   HOST    SYS      X    NET    NET   mlx5_1 NODE\n"
                         "  4 b:1 0   NET    NET    NET    NET      X    SYS   mlx5_0 PIX\n"))
      << matrix;
}

TEST(TopologyTest, WhatAServerDoesNotTellIsNotGuessed) {
  Look look = server("a:1", "");
  for (wire::GpuReport::Gpu& each : look.gpus.gpus) {
    each.paths.clear();
    each.adapter.clear();
  }
  const std::string matrix = matrix_of({look, server("b:1", "")});
  EXPECT_NE(matrix.find("  0 a:1 0     X      -    NET    NET   -\n"), std::string::npos) << matrix;
}

}  // namespace
}  // namespace rcuda::smi
