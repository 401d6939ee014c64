// Pool: the GPUs of RCUDA_DEVICES as NVML shows them: all GPUs, in the order of the list. NVML
// ignores CUDA_VISIBLE_DEVICES, so here only queries about NVLinks depend on it
// (shows_neighbours()).
//
// The servers are queried without a session (common/messages/gpu_report.h), so nothing here starts
// CUDA or a thread, and a program may fork afterwards. A report is reused for a fifth of a second,
// except for memory and processes, which are always queried anew.
//
// Threads: any. Blocking: look() queries the GPU's server, and the other servers until each has
// answered once, because the PCI addresses must differ in the pool. A query takes a few
// milliseconds, or five seconds if the server does not answer. A server that did not answer is not
// queried again for one second; a look() for a GPU of another server does not query it for one
// minute. If RCUDA_DEVICES names GPUs by UUID, all functions query the servers of these GPUs until
// each has answered once. Errors: as nvmlReturn_t. The log has each cause once, and again if the
// server has answered in between.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/pool/device_list.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/messages/gpu_report.h"
#include "common/nvml/nvml_api.h"

namespace rcuda::client::nvml {

// One GPU, as its server reported it at one time.
struct View {
  uint32_t index = 0;      // in the pool
  uint32_t server = 0;     // equal for GPUs of one server
  size_t place = 0;        // index in report->gpus
  std::string pci_bus_id;  // differs from that of every other GPU of the pool
  std::shared_ptr<const wire::GpuReport> report;
  const wire::GpuReport::Gpu& gpu() const { return report->gpus[place]; }
};

class Pool {
 public:
  static Pool& get();

  // Reads RCUDA_DEVICES. Queries only servers whose GPUs the variable names by UUID, and only until
  // they have answered once.
  nvmlReturn_t count(uint32_t* count);
  // Returns NVML_ERROR_GPU_IS_LOST if the server does not answer or no longer has the GPU.
  // `now`: queries the server even if the last report is fresh.
  nvmlReturn_t look(uint32_t index, View* view, bool now = false);
  // Whether the pool has several GPUs of the view's server, and CUDA_VISIBLE_DEVICES hides none of
  // them at present.
  bool shows_neighbours(const View& view);

 private:
  using Clock = std::chrono::steady_clock;
  struct Server {
    std::string host;
    uint16_t port = 0;
    std::shared_ptr<const wire::GpuReport> report;
    Clock::time_point asked_at = Clock::time_point::min();
    std::string failure;        // the last failure, already logged
    bool has_answered = false;  // since the last failure
  };
  struct Device {
    uint32_t server = 0;
    uint32_t gpu = 0;  // the number of the GPU on its server
    std::string pci_bus_id;
  };

  nvmlReturn_t read_list() RCUDA_REQUIRES(mutex_);
  void ask(Server* server, bool now = false) RCUDA_REQUIRES(mutex_);
  void name_addresses() RCUDA_REQUIRES(mutex_);
  Result<std::vector<std::string>> uuids() RCUDA_REQUIRES(mutex_);

  Mutex mutex_;
  bool read_ RCUDA_GUARDED_BY(mutex_) = false;  // read_list() need not read RCUDA_DEVICES again
  Clock::time_point read_from_ RCUDA_GUARDED_BY(mutex_) = Clock::time_point::min();
  nvmlReturn_t result_ RCUDA_GUARDED_BY(mutex_) = NVML_SUCCESS;
  std::vector<DeviceAddress> pool_ RCUDA_GUARDED_BY(mutex_);
  std::vector<Server> servers_ RCUDA_GUARDED_BY(mutex_);
  std::vector<Device> devices_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::client::nvml
