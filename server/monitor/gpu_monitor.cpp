#include "server/monitor/gpu_monitor.h"

#include <thread>
#include <utility>

#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/start_thread.h"
#include "common/base/unique_fd.h"
#include "server/monitor/adapters.h"

namespace rcuda::server {

struct GpuMonitor::State {
  Read read;
  UniqueFd event;
  Mutex mutex;
  std::string driver_path RCUDA_GUARDED_BY(mutex);
  std::vector<GpuName> gpus RCUDA_GUARDED_BY(mutex);  // of the reading
  bool reading RCUDA_GUARDED_BY(mutex) = false;
  std::shared_ptr<const GpuSample> latest;
  std::vector<GpuName> latest_of RCUDA_GUARDED_BY(mutex);  // the GPUs that it tells of
  // When its reading began.
  Clock::time_point taken_at RCUDA_GUARDED_BY(mutex) = Clock::time_point::min();
};

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

GpuMonitor::GpuMonitor(Read read) : state_(std::make_shared<State>()) {
  state_->read = std::move(read);
  state_->event.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

GpuMonitor::~GpuMonitor() = default;

bool GpuMonitor::find(const std::string& driver_path, const std::vector<GpuName>& gpus,
                      Clock::time_point asked, std::shared_ptr<const GpuSample>* sample) {
  MutexLock lock(state_->mutex);
  const bool taken = state_->taken_at != Clock::time_point::min();
  if (taken && state_->taken_at + kFresh >= asked && state_->latest_of == gpus) {
    *sample = state_->latest;
    return true;
  }
  if (state_->reading) return false;
  state_->driver_path = driver_path;
  state_->gpus = gpus;
  std::thread thread;
  if (!start_thread(&thread, [state = state_] { work(state); }).ok()) {
    sample->reset();  // as without NVML
    return true;
  }
  thread.detach();
  state_->reading = true;
  return false;
}

void GpuMonitor::work(const std::shared_ptr<State>& state) {
  MutexLock lock(state->mutex);
  const std::string driver_path = state->driver_path;
  const std::vector<GpuName> gpus = state->gpus;
  lock.unlock();
  const Clock::time_point begin = Clock::now();
  std::shared_ptr<const GpuSample> sample = state->read(driver_path, gpus);
  lock.lock();
  state->latest = std::move(sample);
  state->latest_of = gpus;
  state->taken_at = begin;
  state->reading = false;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(state->event.get(), &one, sizeof one);
}

int GpuMonitor::descriptor() const { return state_->event.get(); }

void GpuMonitor::acknowledge() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(state_->event.get(), &count, sizeof count);
}

}  // namespace rcuda::server
