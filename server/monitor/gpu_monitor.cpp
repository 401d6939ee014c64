#include "server/monitor/gpu_monitor.h"

#include <utility>

#include "common/base/log.h"
#include "server/monitor/adapters.h"

namespace rcuda::server {

GpuMonitor::Read GpuMonitor::from_nvml() {
  struct Nvml {
    bool tried = false;
    std::unique_ptr<NvmlReader> reader;
  };
  return [nvml = std::make_shared<Nvml>()](
             const std::string& driver_path,
             const std::vector<GpuName>& gpus) -> std::unique_ptr<GpuSample> {
    if (!std::exchange(nvml->tried, true)) {
      auto reader = NvmlReader::open(driver_path);
      if (reader.ok()) {
        nvml->reader = std::move(reader).value();
      } else {
        RCUDA_INFO("clients see no utilisation, temperature and so on of the GPUs: %s",
                   reader.status().message().c_str());
      }
    }
    if (!nvml->reader) return nullptr;
    auto sample = std::make_unique<GpuSample>(nvml->reader->read(gpus));
    find_adapters("/", gpus, sample.get());
    return sample;
  };
}

bool GpuMonitor::find(const std::string& driver_path, const std::vector<GpuName>& gpus,
                      Clock::time_point asked, std::shared_ptr<const GpuSample>* sample) {
  if (std::optional<Reading> reading = readings_.take(Key::kAll)) latest_ = std::move(reading);
  if (latest_ && latest_->begun + kFresh >= asked && latest_->gpus == gpus) {
    *sample = latest_->sample;
    return true;
  }
  if (readings_.is_asked(Key::kAll)) return false;
  const Status begun = readings_.ask(Key::kAll, [read = read_, driver_path, gpus] {
    const Clock::time_point now = Clock::now();
    return Reading{read(driver_path, gpus), gpus, now};
  });
  if (begun.ok()) return false;
  sample->reset();  // as without NVML
  return true;
}

}  // namespace rcuda::server
