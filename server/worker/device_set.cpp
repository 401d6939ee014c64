#include "server/worker/device_set.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <string>

#include "common/base/units.h"
#include "common/cuda/uuid_text.h"

namespace rcuda::server {
namespace {

constexpr int kPeerAttributes[] = {1, 2, 3, 4};  // CUdevice_P2PAttribute

}  // namespace

Result<std::unique_ptr<DeviceSet>> DeviceSet::prepare(const api::DriverTable& driver,
                                                      const std::vector<uint32_t>& ordinals,
                                                      std::unique_ptr<StagingMemory> staging,
                                                      const DeviceScope& scope,
                                                      std::optional<uint32_t>* full) {
  int count = 0;
  if (CUresult result = driver.cuDeviceGetCount(&count); result != CUDA_SUCCESS) {
    return Status::from_cuda(result, "counting devices");
  }
  std::unique_ptr<DeviceSet> set(new DeviceSet(driver, std::move(staging)));
  for (const DeviceScope::Device& wanted : scope.devices) {
    RCUDA_ASSIGN_OR_RETURN(const uint32_t ordinal, set->find(wanted, static_cast<uint32_t>(count)));
    RCUDA_RETURN_IF_ERROR(set->add(ordinal, wanted.ordinal, full));
  }
  std::vector<uint32_t> wanted = scope.devices.empty() ? ordinals : std::vector<uint32_t>();
  const bool all = scope.devices.empty() && ordinals.empty();
  for (uint32_t i = 0; all && i < static_cast<uint32_t>(count); ++i) {
    wanted.push_back(i);
  }
  for (uint32_t ordinal : wanted) {
    if (ordinal >= static_cast<uint32_t>(count)) {
      return Status(Code::kInvalidArgument,
                    "this machine has no device " + std::to_string(ordinal) + ", only " +
                        std::to_string(count) + " devices, numbered from 0: correct --devices");
    }
    RCUDA_RETURN_IF_ERROR(set->add(ordinal, ordinal, full));
  }
  if (set->devices_.empty()) return Status(Code::kNotFound, "the driver reports no devices");
  RCUDA_RETURN_IF_ERROR(set->lock_staging());
  return set;
}

DeviceSet::~DeviceSet() {
  if (locked_) driver_.cuMemHostUnregister(staging_->data());
  for (const Device& device : devices_) driver_.cuDevicePrimaryCtxRelease_v2(device.device);
}

Result<uint32_t> DeviceSet::find(const DeviceScope::Device& wanted, uint32_t count) const {
  for (uint32_t ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device = 0;
    uint8_t uuid[16] = {};
    char name[256] = {};
    if (driver_.cuDeviceGet(&device, static_cast<int>(ordinal)) == CUDA_SUCCESS &&
        driver_.cuDeviceGetName(name, sizeof name - 1, device) == CUDA_SUCCESS &&
        read_uuid(driver_, device, uuid) == CUDA_SUCCESS &&
        cuda::uuid_text(uuid, cuda::is_mig_name(name)) == wanted.uuid) {
      return ordinal;
    }
  }
  return Status(Code::kNotFound, "the driver does not show device " +
                                     std::to_string(wanted.ordinal) + " (" + wanted.uuid +
                                     ") to a worker that is restricted to its devices: set "
                                     "RCUDA_SERVER_DEVICE_ISOLATION=commands");
}

void DeviceSet::describe(WorkerReady* ready) const {
  for (const Device& device : devices_) {
    const bool mig = cuda::is_mig_name(device.info.name);
    ready->devices.push_back({device.ordinal, device.info.name, device.info.total_bytes});
    ready->identities.push_back({cuda::uuid_text(device.info.uuid, mig), device.info.pci_bus_id});
  }
}

// `ordinal`: the driver's number of the device. `number`: the server's number of the device.
Status DeviceSet::add(uint32_t ordinal, uint32_t number, std::optional<uint32_t>* full) {
  Device device;
  device.ordinal = number;
  if (CUresult result = driver_.cuDeviceGet(&device.device, static_cast<int>(ordinal));
      result != CUDA_SUCCESS) {
    return Status::from_cuda(result, "opening device " + std::to_string(ordinal));
  }
  if (CUresult result = driver_.cuDevicePrimaryCtxRetain(&device.primary, device.device);
      result != CUDA_SUCCESS) {
    if (full && result == CUDA_ERROR_OUT_OF_MEMORY) *full = number;
    return Status::from_cuda(result,
                             "making the primary context of device " + std::to_string(ordinal));
  }
  char text[256] = {};
  driver_.cuDeviceGetName(text, sizeof text - 1, device.device);
  device.info.name = text;
  char bus[64] = {};
  if (driver_.cuDeviceGetPCIBusId &&
      driver_.cuDeviceGetPCIBusId(bus, sizeof bus - 1, device.device) == CUDA_SUCCESS) {
    device.info.pci_bus_id = bus;
  }
  (void)read_uuid(driver_, device.device, device.info.uuid);
  size_t total = 0;
  driver_.cuDeviceTotalMem_v2(&total, device.device);
  device.info.total_bytes = total;
  device.info.attributes.resize(CU_DEVICE_ATTRIBUTE_MAX, INT32_MIN);
  for (int i = 1; i < CU_DEVICE_ATTRIBUTE_MAX; ++i) {
    int value = 0;
    if (driver_.cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(i), device.device) ==
        CUDA_SUCCESS) {
      device.info.attributes[static_cast<size_t>(i)] = value;
    }
  }
  ordinals_.push_back(number);
  devices_.push_back(std::move(device));
  return {};
}

Status DeviceSet::lock_staging() {
  RCUDA_RETURN_IF_ERROR(staging_->wait());
  driver_.cuCtxSetCurrent(devices_.front().primary);
  if (CUresult result = driver_.cuMemHostRegister_v2(staging_->data(), staging_->bytes(),
                                                     CU_MEMHOSTREGISTER_PORTABLE);
      result != CUDA_SUCCESS) {
    return Status::from_cuda(result, "page-locking " + bytes_text(staging_->bytes()) +
                                         " of staging memory (raise ulimit -l or lower "
                                         "--staging-bytes)");
  }
  locked_ = true;
  return {};
}

Status DeviceSet::select(const std::vector<uint32_t>& wanted, wire::Welcome* welcome,
                         SessionResources* resources) const {
  std::vector<const Device*> chosen;
  for (uint32_t ordinal : wanted) {
    auto found = std::find(ordinals_.begin(), ordinals_.end(), ordinal);
    if (found == ordinals_.end()) {
      return Status(Code::kNotFound, "the server does not offer device " + std::to_string(ordinal) +
                                         "; it offers " + list_of(ordinals_));
    }
    const Device& device = devices_[static_cast<size_t>(found - ordinals_.begin())];
    if (std::find(chosen.begin(), chosen.end(), &device) != chosen.end()) {
      return Status(Code::kInvalidArgument, "the client requests device " +
                                                std::to_string(ordinal) +
                                                " twice: name each device once in RCUDA_DEVICES");
    }
    chosen.push_back(&device);
  }
  if (chosen.empty()) return Status(Code::kInvalidArgument, "the client requests no device");
  for (const Device* device : chosen) {
    wire::DeviceInfo info = device->info;
    info.ordinal = static_cast<uint32_t>(resources->devices.size());
    for (const Device* peer : chosen) {
      for (int attribute : kPeerAttributes) {
        int value = 0;
        if (peer == device ||
            driver_.cuDeviceGetP2PAttribute(&value, static_cast<CUdevice_P2PAttribute>(attribute),
                                            device->device, peer->device) != CUDA_SUCCESS) {
          value = 0;
        }
        info.peer_attributes.push_back(value);
      }
    }
    welcome->devices.push_back(std::move(info));
    resources->devices.push_back({device->device, device->primary, device->ordinal});
  }
  int least = 0, greatest = 0;
  driver_.cuCtxSetCurrent(chosen.front()->primary);
  if (driver_.cuCtxGetStreamPriorityRange) {
    driver_.cuCtxGetStreamPriorityRange(&least, &greatest);
  }
  welcome->priority_least = static_cast<uint32_t>(least);
  welcome->priority_greatest = greatest;
  welcome->staging_bytes = staging_->staging_bytes();
  resources->unmetered = &driver_;
  resources->staging = staging_->data();
  resources->staging_bytes = staging_->staging_bytes();
  resources->staging_file = staging_->file();
  resources->reply_memory = staging_->data() + staging_->staging_bytes();
  resources->wait_marks = {resources->reply_memory + kReplyMemoryBytes, kWaitMarkBytes};
  resources->marks = {resources->wait_marks.data() + kWaitMarkBytes, kMarkMemoryBytes};
  // ArrivalGates needs words that are page-locked in the context of the session's first device.
  // lock_staging() has page-locked all memory in the context of this worker's first device.
  if (chosen.front() == &devices_.front()) {
    resources->arrival_words = {resources->marks.data() + kMarkMemoryBytes, kArrivalWordBytes};
  }
  resources->pinned_bytes = staging_->bytes();
  return {};
}

}  // namespace rcuda::server
