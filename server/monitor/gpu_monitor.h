// GpuMonitor: takes samples of the server's GPUs for the daemon's thread, which must not wait.
//
// A thread of this class reads NVML only on request. A sample answers all requests within kFresh,
// so the number of clients does not change the cost.
//
// Threads: one thread calls. Blocking: nothing, not even the destructor; a read that hangs keeps
// its thread until it returns. Errors: without NVML every sample is null; one line of the log says
// why.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/async_lookup.h"
#include "server/monitor/nvml_reader.h"

namespace rcuda::server {

// Sets the RDMA adapter that is nearest to each GPU in the PCI topology. A GPU that sysfs does not
// list gets no adapter. `root`: "/", or a made-up tree in tests. `sample`: has the GPUs of `gpus`,
// in their order. Any thread; blocks to read a few files of sysfs for each GPU and adapter.
void find_adapters(const std::filesystem::path& root, const std::vector<GpuName>& gpus,
                   GpuSample* sample);

class GpuMonitor {
 public:
  using Clock = std::chrono::steady_clock;
  // Returns null without NVML.
  using Read = std::function<std::unique_ptr<GpuSample>(const std::string& driver_path,
                                                        const std::vector<GpuName>& gpus)>;
  static constexpr auto kFresh = std::chrono::milliseconds(100);

  // Returns a function that reads NVML. Its first call opens NVML.
  static Read from_nvml();
  // `read` runs on another thread, perhaps after this object is gone.
  explicit GpuMonitor(Read read = from_nvml()) : read_(std::move(read)), readings_(1) {}

  // Sets `sample` to the latest sample and returns true, if that sample is fresh at `asked`.
  // Otherwise takes a new sample and returns false; descriptor() becomes readable when the new
  // sample is there.
  bool find(const std::string& driver_path, const std::vector<GpuName>& gpus,
            Clock::time_point asked, std::shared_ptr<const GpuSample>* sample);
  int descriptor() const { return readings_.descriptor(); }
  // Makes descriptor() unreadable until the next sample.
  void acknowledge() { readings_.acknowledge(); }

 private:
  enum class Key { kAll };  // a single key: one reading at a time
  struct Reading {
    std::shared_ptr<const GpuSample> sample;
    std::vector<GpuName> gpus;
    Clock::time_point begun;
  };

  const Read read_;
  AsyncLookup<Key, Reading> readings_;
  std::optional<Reading> latest_;
};

}  // namespace rcuda::server
