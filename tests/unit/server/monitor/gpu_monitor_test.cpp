#include "server/monitor/gpu_monitor.h"

#include <atomic>
#include <future>
#include <thread>

#include <gtest/gtest.h>
#include <poll.h>

namespace rcuda::server {
namespace {

using Clock = GpuMonitor::Clock;
using Sample = std::shared_ptr<const GpuSample>;

const std::vector<GpuName> kGpus = {{"0000:10:00.0", "GPU-0"}};

bool readable(const GpuMonitor& monitor, int timeout_ms) {
  pollfd item{monitor.descriptor(), POLLIN, 0};
  return ::poll(&item, 1, timeout_ms) == 1;
}

// Waits for a sample that is fresh at `asked`.
Sample wait(GpuMonitor& monitor, Clock::time_point asked) {
  Sample sample;
  while (!monitor.find("", kGpus, asked, &sample)) {
    EXPECT_TRUE(readable(monitor, 60'000));
    monitor.acknowledge();
  }
  return sample;
}

TEST(GpuMonitorTest, OneReadingServesEverybodyWhoAsksMeanwhile) {
  std::atomic<int> reads{0};
  GpuMonitor monitor([&](const std::string&, const std::vector<GpuName>& gpus) {
    EXPECT_EQ(gpus, kGpus);
    auto sample = std::make_unique<GpuSample>();
    sample->driver_version = std::to_string(++reads);
    return sample;
  });
  EXPECT_FALSE(readable(monitor, 0));
  const Clock::time_point asked = Clock::now();
  EXPECT_EQ(wait(monitor, asked)->driver_version, "1");
  EXPECT_EQ(wait(monitor, asked)->driver_version, "1");
  EXPECT_FALSE(readable(monitor, 0));
  // A later query gets a newer sample.
  std::this_thread::sleep_for(2 * GpuMonitor::kFresh);
  EXPECT_EQ(wait(monitor, Clock::now())->driver_version, "2");
  EXPECT_EQ(reads, 2);
}

// A server gets the list of its GPUs from its first worker, perhaps while a reading without GPUs is
// in progress.
TEST(GpuMonitorTest, ASampleOfOtherGpusServesNobody) {
  std::promise<void> second_goes_on;
  GpuMonitor monitor([&](const std::string&, const std::vector<GpuName>& gpus) {
    if (!gpus.empty()) second_goes_on.get_future().wait();
    auto sample = std::make_unique<GpuSample>();
    sample->gpus.resize(gpus.size());
    return sample;
  });
  const Clock::time_point asked = Clock::now();
  Sample sample;
  EXPECT_FALSE(monitor.find("", {}, asked, &sample));
  EXPECT_TRUE(readable(monitor, 60'000));
  monitor.acknowledge();
  EXPECT_FALSE(monitor.find("", kGpus, asked, &sample));  // starts the second reading
  EXPECT_FALSE(monitor.find("", kGpus, asked, &sample));
  second_goes_on.set_value();
  EXPECT_EQ(wait(monitor, asked)->gpus.size(), 1u);
}

TEST(GpuMonitorTest, AReadingThatHangsBlocksNobody) {
  std::promise<void> begun;
  auto goes_on = std::make_shared<std::promise<void>>();
  {
    GpuMonitor monitor([&begun, goes_on](const std::string&, const std::vector<GpuName>&) {
      begun.set_value();
      goes_on->get_future().wait();
      return std::make_unique<GpuSample>();
    });
    Sample sample;
    EXPECT_FALSE(monitor.find("", kGpus, Clock::now(), &sample));
    begun.get_future().wait();
    EXPECT_FALSE(monitor.find("", kGpus, Clock::now(), &sample));
    EXPECT_FALSE(readable(monitor, 0));
  }
  goes_on->set_value();
}

TEST(GpuMonitorTest, WithoutNvmlThereIsAnAnswerWithoutFigures) {
  GpuMonitor monitor(
      [](const std::string&, const std::vector<GpuName>&) { return std::unique_ptr<GpuSample>(); });
  EXPECT_EQ(wait(monitor, Clock::now()), nullptr);
}

}  // namespace
}  // namespace rcuda::server
