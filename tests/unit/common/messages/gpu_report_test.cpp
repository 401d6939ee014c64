#include "common/messages/gpu_report.h"

#include <gtest/gtest.h>

namespace rcuda::wire {
namespace {

GpuReport sample() {
  GpuReport::Gpu gpu;
  gpu.ordinal = 3;
  gpu.name = "a GPU";
  gpu.uuid = "GPU-1";
  gpu.pci_bus_id = "0000:10:00.0";
  gpu.pci_device = 1;
  gpu.pci_subsystem = 2;
  gpu.total_bytes = 100;
  gpu.used_bytes = 40;
  gpu.reserved_bytes = 5;
  gpu.quota_bytes = 60;
  gpu.quota_used_bytes = 10;
  gpu.figures = {7, kUnknownFigure};
  gpu.texts = {"serial", ""};
  gpu.processes = {{"here", 12, 30, 50}, {"there", 13}};
  gpu.paths = {{0, {0, 0}}, {40, {0, 5}}};
  gpu.adapter = "mlx5_0";
  gpu.adapter_ancestor = 10;
  GpuReport report{"580.1", 13000, 77, "a host", {gpu, gpu}};
  report.gpus[1].paths.clear();
  return report;
}

TEST(GpuReportTest, SurvivesTheWire) {
  const std::vector<std::byte> body = encode(sample());
  const Result<GpuReport> got = decode<GpuReport>(body);
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(encode(*got), body);
  EXPECT_EQ(got->driver_version, "580.1");
  EXPECT_EQ(got->cuda_version, 13000u);
  EXPECT_EQ(got->layout, 77u);
  ASSERT_EQ(got->gpus.size(), 2u);
  const GpuReport::Gpu& gpu = got->gpus[0];
  EXPECT_EQ(gpu.ordinal, 3u);
  EXPECT_EQ(gpu.used_bytes, 40u);
  EXPECT_EQ(gpu.quota_bytes, 60u);
  EXPECT_EQ(gpu.quota_used_bytes, 10u);
  EXPECT_EQ(gpu.processes[0].quota_bytes, 50u);
  EXPECT_EQ(gpu.processes[1].quota_bytes, 0u);
  EXPECT_EQ(gpu.figures, (std::vector<uint64_t>{7, kUnknownFigure}));
  EXPECT_EQ(gpu.processes[1].host, "there");
  EXPECT_EQ(gpu.processes[1].used_bytes, kUnknownFigure);
  EXPECT_EQ(gpu.paths[1].ancestor, 40u);
  EXPECT_EQ(gpu.paths[1].p2p_status, (std::vector<uint32_t>{0, 5}));
}

TEST(GpuReportTest, ACutOneIsRefused) {
  const std::vector<std::byte> body = encode(sample());
  for (size_t bytes = 0; bytes < body.size(); ++bytes) {
    const std::vector<std::byte> cut(body.begin(), body.begin() + static_cast<ptrdiff_t>(bytes));
    EXPECT_FALSE(decode<GpuReport>(cut).ok()) << bytes;
  }
}

TEST(GpuReportTest, PathsAreThoseToEveryGpu) {
  GpuReport report = sample();
  report.gpus[0].paths.pop_back();
  EXPECT_EQ(decode<GpuReport>(encode(report)).status().code(), Code::kProtocol);
}

}  // namespace
}  // namespace rcuda::wire
