#include "softgpu/driver/device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include <pthread.h>

#include "api/exports/driver_version.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/cuda/uuid_text.h"
#include "common/cuda/visible_devices.h"
#include "softgpu/driver/call_gate.h"
#include "softgpu/driver/checkpoint.h"
#include "softgpu/driver/config.h"
#include "softgpu/driver/connections.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/operation.h"
#include "softgpu/driver/pools.h"
#include "softgpu/driver/shared_account.h"
#include "softgpu/driver/start_cost.h"
#include "softgpu/exec/program.h"

namespace softgpu::driver {
namespace {

struct Driver {
  std::mutex mutex;
  bool tried = false;
  CUresult result = CUDA_ERROR_NOT_INITIALIZED;
  std::vector<std::unique_ptr<Device>> devices;
};

Driver& driver() {
  static auto* instance = new Driver;
  return *instance;
}

// Checked first by every entry point. Stored with release after `devices` is complete.
std::atomic<CUresult> state{CUDA_ERROR_NOT_INITIALIZED};

// Null if this process shares no device memory. Never destroyed, like the devices.
SharedAccount* account = nullptr;

// Sets *numbers to the numbers of the devices that the process sees, in the process's order.
CUresult find_visible(const Configuration& configuration, std::vector<size_t>* numbers) {
  numbers->resize(static_cast<size_t>(configuration.devices));
  std::iota(numbers->begin(), numbers->end(), 0);
  if (const char* list = std::getenv("CUDA_VISIBLE_DEVICES")) {
    const auto uuid_of = [&](size_t number) {
      const CUuuid uuid = device_uuid(configuration, static_cast<int>(number));
      uint8_t bytes[sizeof uuid.bytes];
      std::memcpy(bytes, uuid.bytes, sizeof bytes);
      return rcuda::cuda::uuid_text(bytes, configuration.mig != 0);
    };
    const auto selected = rcuda::cuda::select_devices(list, numbers->size(), uuid_of);
    if (selected.named_twice) return CUDA_ERROR_INVALID_DEVICE;
    *numbers = selected.positions;
  }
  return numbers->empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

// The driver's exit handler: shuts the driver down. Handlers that the application registered after
// cuInit run earlier and may use the driver; handlers that it registered before cuInit run later
// and may not. Driver 580 does the same.
void shut_down_at_exit() {
  CUresult initialized = CUDA_SUCCESS;
  if (!state.compare_exchange_strong(initialized, CUDA_ERROR_DEINITIALIZED)) return;
  {
    std::lock_guard lock(driver().mutex);
    driver().result = CUDA_ERROR_DEINITIALIZED;
  }
  if (in_host_function()) return;  // the shutdown would wait for this host function
  for (const auto& device : driver().devices) device->primary().abandon();
  handle_table<Context>().for_each([](Context& context) { context.abandon(); });
}

}  // namespace

CopyEngine::Slot CopyEngine::book(size_t bytes) {
  const auto duration = std::chrono::nanoseconds(
      bytes_per_ns_ > 0 ? static_cast<int64_t>(static_cast<double>(bytes) / bytes_per_ns_) : 0);
  std::lock_guard lock(mutex_);
  Slot slot;
  slot.begin = std::max(free_at_, std::chrono::steady_clock::now());
  slot.end = free_at_ = slot.begin + duration;
  // Latency delays this transfer but does not occupy the engine: transfers are pipelined.
  slot.done = slot.end + std::chrono::nanoseconds(latency_ns_);
  return slot;
}

void CopyEngine::give_back(const Slot& slot) {
  std::lock_guard lock(mutex_);
  const auto unused = slot.end - std::max(slot.begin, std::chrono::steady_clock::now());
  free_at_ -= std::max(unused, decltype(unused)::zero());
}

Device::Device(int ordinal, int number)
    : ordinal_(ordinal),
      number_(number),
      total_bytes_(configuration().memory_bytes),
      uuid_(device_uuid(configuration(), number)),
      place_(number),
      host_to_device_(configuration().pcie_bytes_per_ns, configuration().pcie_latency_ns),
      device_to_host_(configuration().pcie_bytes_per_ns, configuration().pcie_latency_ns),
      peer_out_(configuration().peer_bytes_per_ns, 0),
      connections_(configuration().connections > 0
                       ? std::make_unique<Connections>(configuration().connections)
                       : nullptr),
      primary_(std::make_shared<Context>(*this, /*primary=*/true)) {}

Device::~Device() = default;

bool Device::charge(size_t bytes) {
  size_t used = used_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > total_bytes_ - used) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  if (!account || account->take(place_, bytes, total_bytes_)) return true;
  used_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  return false;
}

void Device::refund(size_t bytes) {
  used_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  if (account) account->give(place_, bytes);
}

size_t Device::used_bytes() const {
  if (!account) return used_bytes_.load(std::memory_order_relaxed);
  return std::min<size_t>(account->sum(place_), total_bytes_);
}

void Device::leave() {
  if (account) account->give(place_, used_bytes_);
}

bool Device::come_back(int place) {
  if (account && !account->take(place, used_bytes_, total_bytes_)) return false;
  place_ = place;
  return true;
}

CUresult check_initialized() {
  if (in_host_function()) return CUDA_ERROR_NOT_PERMITTED;
  gate::pass();
  return state.load(std::memory_order_acquire);
}

CUresult check_initialized_without_gate() {
  if (in_host_function()) return CUDA_ERROR_NOT_PERMITTED;
  return state.load(std::memory_order_acquire);
}

CUresult initialize() {
  Driver& shared = driver();
  std::lock_guard lock(shared.mutex);
  if (shared.tried) return shared.result;
  shared.tried = true;
  rcuda::set_log_name("softgpu");
  rcuda::Result<Configuration> read = read_configuration();
  if (!read) {
    RCUDA_ERROR("%s", read.status().message().c_str());
    return shared.result = CUDA_ERROR_INVALID_VALUE;
  }
  set_configuration(*read);
  rcuda::api::set_driver_version(read->driver_version);
  exec::set_worker_count(static_cast<unsigned>(read->threads));
  if (!read->shared_memory.empty()) {
    auto opened = SharedAccount::open(read->shared_memory);
    if (!opened) {
      RCUDA_ERROR("%s", opened.status().message().c_str());
      return shared.result = CUDA_ERROR_INVALID_VALUE;
    }
    account = std::move(opened).value().release();
  }
  std::vector<size_t> visible;
  if (CUresult result = find_visible(*read, &visible)) return shared.result = result;
  pay_for_init();
  for (const size_t number : visible) {
    shared.devices.push_back(std::make_unique<Device>(static_cast<int>(shared.devices.size()),
                                                      static_cast<int>(number)));
    // The default pool is made now. If it were made later, it could get the address of a destroyed
    // pool, and then the stale handle of that pool would name the default pool.
    default_pool(*shared.devices.back());
  }
  // A child of fork() has none of the driver's threads. Every call fails there, as with NVIDIA's
  // driver.
  ::pthread_atfork(nullptr, nullptr, [] {
    state.store(CUDA_ERROR_NOT_INITIALIZED, std::memory_order_relaxed);
    driver().result = CUDA_ERROR_NOT_INITIALIZED;
    gate::open();
  });
  std::atexit(shut_down_at_exit);
  state.store(CUDA_SUCCESS, std::memory_order_release);
  checkpoint::serve();
  RCUDA_INFO("%zu virtual device%s of %s", visible.size(), visible.size() == 1 ? "" : "s",
             rcuda::bytes_text(read->memory_bytes).c_str());
  return shared.result = CUDA_SUCCESS;
}

int device_count() { return static_cast<int>(driver().devices.size()); }

Device* device_at(CUdevice ordinal) {
  if (check_initialized_without_gate() != CUDA_SUCCESS || ordinal < 0 ||
      ordinal >= device_count()) {
    return nullptr;
  }
  return driver().devices[static_cast<size_t>(ordinal)].get();
}

Device* device_with_uuid(const CUuuid& uuid) {
  for (int i = 0; i < device_count(); ++i) {
    Device* device = device_at(i);
    if (device && std::memcmp(device->uuid().bytes, uuid.bytes, sizeof uuid.bytes) == 0) {
      return device;
    }
  }
  return nullptr;
}

}  // namespace softgpu::driver
