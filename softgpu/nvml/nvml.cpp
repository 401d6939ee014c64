// softgpu's libnvidia-ml.so.1: NVML for the devices that softgpu's libcuda.so.1 makes from the same
// environment (softgpu/driver/config.h). It has the functions that an rcuda-server calls
// (server/monitor), and those that PyTorch looks up. The memory in use is that of the shared
// account (SOFTGPU_SHARED_MEMORY), or else of this process and its children. The other figures are
// those of an idle GPU: they are constant, and some differ between devices.
//
// Any thread. Blocking: reads of /proc (processes.h). Errors: as nvmlReturn_t.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "common/cuda/uuid_text.h"
#include "common/nvml/figures.h"
#include "softgpu/driver/config.h"
#include "softgpu/driver/shared_account.h"
#include "softgpu/nvml/processes.h"

namespace {

constexpr unsigned kFirstBus = 0x10;  // as softgpu/driver/device_model.cpp
constexpr const char kDriverVersion[] = "580.0.0-softgpu";

const softgpu::driver::Configuration& machine() {
  static const softgpu::driver::Configuration configuration = [] {
    const auto read = softgpu::driver::read_configuration();
    return read.ok() ? *read : softgpu::driver::Configuration{};  // the driver reports errors
  }();
  return configuration;
}

// Null: each process has its devices' memory to itself.
softgpu::driver::SharedAccount* shared_account() {
  static const auto account = [] {
    std::unique_ptr<softgpu::driver::SharedAccount> none;
    if (machine().shared_memory.empty()) return none;
    auto opened = softgpu::driver::SharedAccount::open(machine().shared_memory);
    return opened.ok() ? std::move(*opened) : std::move(none);  // the driver reports the error
  }();
  return account.get();
}

// A handle is the address of the device's element in one of these arrays: `places` for a GPU,
// `parts` for a part of a GPU (MIG).
char places[64], parts[64];

bool is_part(nvmlDevice_t handle) {
  const char* place = reinterpret_cast<const char*>(handle);
  return place >= parts && place < parts + machine().devices;
}

bool ordinal_of(nvmlDevice_t handle, unsigned* ordinal) {
  const char* place = reinterpret_cast<const char*>(handle);
  const char* const first = is_part(handle) ? parts : places;
  if (place < first || place >= first + machine().devices) return false;
  *ordinal = static_cast<unsigned>(place - first);
  return true;
}

struct Known {
  const char* function;
  unsigned long long values[4];
  bool grows;  // adds the device's ordinal to the first value
};
constexpr Known kKnown[] = {
    {"nvmlDeviceGetUtilizationRates", {7, 3}, true},
    {"nvmlDeviceGetPowerUsage", {71'000}, true},
    {"nvmlDeviceGetEnforcedPowerLimit", {700'000}, false},
    {"nvmlDeviceGetPowerManagementLimit", {700'000}, false},
    {"nvmlDeviceGetPowerManagementDefaultLimit", {700'000}, false},
    {"nvmlDeviceGetPowerManagementLimitConstraints", {200'000, 700'000}, false},
    {"nvmlDeviceGetPowerManagementMode", {1}, false},
    {"nvmlDeviceGetTemperature", {31}, true},
    {"nvmlDeviceGetTemperatureThreshold", {92, 89, 95, 87}, false},
    {"nvmlDeviceGetClockInfo", {345, 345, 2619, 765}, false},
    {"nvmlDeviceGetMaxClockInfo", {1980, 1980, 2619, 1545}, false},
    {"nvmlDeviceGetPerformanceState", {0}, false},
    {"nvmlDeviceGetPowerState", {0}, false},
    {"nvmlDeviceGetNumFans", {0}, false},
    {"nvmlDeviceGetBrand", {14}, false},
    {"nvmlDeviceGetArchitecture", {9}, false},
    {"nvmlDeviceGetComputeMode", {0}, false},
    {"nvmlDeviceGetPersistenceMode", {1}, false},
    {"nvmlDeviceGetDisplayActive", {0}, false},
    {"nvmlDeviceGetMinorNumber", {0}, true},
    {"nvmlDeviceGetEccMode", {1, 1}, false},
    {"nvmlDeviceGetMigMode", {0, 0}, false},
    {"nvmlDeviceGetCurrPcieLinkGeneration", {5}, false},
    {"nvmlDeviceGetCurrPcieLinkWidth", {16}, false},
    {"nvmlDeviceGetMaxPcieLinkGeneration", {5}, false},
    {"nvmlDeviceGetMaxPcieLinkWidth", {16}, false},
    {"nvmlDeviceGetEncoderUtilization", {0, 167'000}, false},
    {"nvmlDeviceGetDecoderUtilization", {0, 167'000}, false},
    {"nvmlDeviceGetCurrentClocksEventReasons", {1}, false},
    {"nvmlDeviceGetTotalEnergyConsumption", {1'000'000}, true},
    {"nvmlDeviceGetBAR1MemoryInfo", {131072ull << 20, 131071ull << 20, 1ull << 20}, false},
    {"nvmlDeviceGetNvLinkState", {1, 1, 1, 1}, false},
    {"nvmlDeviceGetNvLinkVersion", {4, 4, 4, 4}, false},
    {"nvmlDeviceGetNvLinkCapability", {1, 1, 1, 1}, false},
    {"nvmlDeviceGetNvLinkRemoteDeviceType", {}, false},  // SOFTGPU_NVLINK_END
};

bool is_without_link(const char* function, unsigned link) {
  return std::strstr(function, "NvLink") && link >= static_cast<unsigned>(machine().nvlinks);
}

// Reads value `index` of the function's row in kKnown.
template <typename T>
nvmlReturn_t get(const char* function, nvmlDevice_t handle, unsigned index, T* value) {
  unsigned ordinal = 0;
  if (!ordinal_of(handle, &ordinal) || !value) return NVML_ERROR_INVALID_ARGUMENT;
  const auto* known = std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& one) {
    return std::strcmp(one.function, function) == 0;
  });
  // A part of a GPU reports none of these values.
  if (is_part(handle) || known == std::end(kKnown) || index >= std::size(known->values) ||
      is_without_link(function, index)) {
    return NVML_ERROR_NOT_SUPPORTED;
  }
  *value = static_cast<T>(known->values[index] + (known->grows && index == 0 ? ordinal : 0));
  if (std::strcmp(function, "nvmlDeviceGetNvLinkRemoteDeviceType") == 0) {
    *value = static_cast<T>(machine().nvlink_end);
  }
  return NVML_SUCCESS;
}

nvmlReturn_t compute_capability(nvmlDevice_t handle, int* major, int* minor) {
  unsigned ordinal = 0;
  if (!ordinal_of(handle, &ordinal) || !major || !minor) return NVML_ERROR_INVALID_ARGUMENT;
  *major = softgpu::driver::kComputeCapability / 10;
  *minor = softgpu::driver::kComputeCapability % 10;
  return NVML_SUCCESS;
}

template <typename T>
nvmlReturn_t get_pair(const char* function, nvmlDevice_t handle, T* first, T* second) {
  if constexpr (std::is_same_v<T, int>) return compute_capability(handle, first, second);
  const nvmlReturn_t result = get(function, handle, 0, first);
  return result == NVML_SUCCESS ? get(function, handle, 1, second) : result;
}

// Info: nvmlProcessInfo_v1_t or nvmlProcessInfo_v2_t.
template <typename Info>
nvmlReturn_t running_processes(nvmlDevice_t device, unsigned* count, Info* infos) {
  unsigned ordinal = 0;
  if (!ordinal_of(device, &ordinal) || !count) return NVML_ERROR_INVALID_ARGUMENT;
  const auto processes = softgpu::nvml::memory_of_processes(ordinal);
  const unsigned room = std::exchange(*count, static_cast<unsigned>(processes.size()));
  if (room < processes.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  if (!processes.empty() && !infos) return NVML_ERROR_INVALID_ARGUMENT;
  for (const auto& [pid, bytes] : processes) {
    *infos = {};
    infos->pid = pid;
    infos->usedGpuMemory = bytes;
    ++infos;
  }
  return NVML_SUCCESS;
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlInit_v2() {
  return machine().devices > 0 ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}
nvmlReturn_t nvmlShutdown() { return NVML_SUCCESS; }

nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned length) {
  if (!version || length < sizeof kDriverVersion) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(version, kDriverVersion, sizeof kDriverVersion);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* address, nvmlDevice_t* device) {
  unsigned domain = 0, bus = 0, slot = 0;
  if (!address || !device) return NVML_ERROR_INVALID_ARGUMENT;
  if (std::sscanf(address, "%x:%x:%x", &domain, &bus, &slot) != 3 || domain != 0 || slot != 0 ||
      bus < kFirstBus || bus >= kFirstBus + static_cast<unsigned>(machine().devices)) {
    return NVML_ERROR_NOT_FOUND;
  }
  *device = reinterpret_cast<nvmlDevice_t>(&places[bus - kFirstBus]);
  return NVML_SUCCESS;
}

// Finds parts only: the server finds GPUs by their PCI address.
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  if (!uuid || !device) return NVML_ERROR_INVALID_ARGUMENT;
  for (int i = 0; machine().mig && i < machine().devices; ++i) {
    const CUuuid bytes = softgpu::driver::device_uuid(machine(), i);
    uint8_t plain[sizeof bytes.bytes];
    std::memcpy(plain, bytes.bytes, sizeof plain);
    if (rcuda::cuda::uuid_text(plain, true) != uuid) continue;
    *device = reinterpret_cast<nvmlDevice_t>(&parts[i]);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  unsigned ordinal = 0;
  if (!ordinal_of(device, &ordinal) || !pci) return NVML_ERROR_INVALID_ARGUMENT;
  *pci = {};
  pci->bus = kFirstBus + ordinal;
  pci->pciDeviceId = 0x233510de;  // an H200, as the name says
  std::snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus);
  std::snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus);
  return NVML_SUCCESS;
}

// The memory in use is that of the account (SOFTGPU_SHARED_MEMORY), so that NVML and the driver
// agree. Without an account it is the sum over the processes, as if they shared the memory.
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  unsigned ordinal = 0;
  if (!ordinal_of(device, &ordinal) || !memory) return NVML_ERROR_INVALID_ARGUMENT;
  const unsigned long long bytes =
      machine().memory_bytes * (machine().mig && !is_part(device) ? 7 : 1);
  unsigned long long used = 0;
  if (softgpu::driver::SharedAccount* const account = shared_account()) {
    used = account->sum(static_cast<int>(ordinal));
  } else {
    for (const auto& [pid, of_process] : softgpu::nvml::memory_of_processes(ordinal)) {
      used += of_process;
    }
  }
  used = std::min(used, bytes);
  *memory = {bytes, bytes - used, used};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                     nvmlProcessInfo_v2_t* infos) {
  return running_processes(device, count, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned* count,
                                                  nvmlProcessInfo_v1_t* infos) {
  return running_processes(device, count, infos);
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other,
                                                 unsigned* level) {
  unsigned first = 0, second = 0;
  if (!ordinal_of(one, &first) || !ordinal_of(other, &second) || !level) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *level = first == second ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_NODE;
  return NVML_SUCCESS;
}

// PyTorch looks up this function and the next when memory runs out, and fails without them.
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t, unsigned, nvmlPciInfo_t*) {
  return NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (!version) return NVML_ERROR_INVALID_ARGUMENT;
  *version = machine().driver_version;
  return NVML_SUCCESS;
}

// As cuDeviceGetP2PAttribute: all devices reach each other, over PCIe.
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t, nvmlDevice_t, unsigned what, unsigned* status) {
  if (!status) return NVML_ERROR_INVALID_ARGUMENT;
  *status = what == NVML_P2P_CAPS_INDEX_NVLINK ? NVML_P2P_STATUS_NOT_SUPPORTED : NVML_P2P_STATUS_OK;
  return NVML_SUCCESS;
}

#define DEFINE_VALUES(name, type, count)                               \
  nvmlReturn_t name(nvmlDevice_t device, type* values) {               \
    nvmlReturn_t result = NVML_SUCCESS;                                \
    for (unsigned i = 0; i < (count) && result == NVML_SUCCESS; ++i) { \
      result = get(#name, device, i, values ? values + i : nullptr);   \
    }                                                                  \
    return result;                                                     \
  }
RCUDA_NVML_VALUES(DEFINE_VALUES)

#define DEFINE_CHOICE(name, count)                                          \
  nvmlReturn_t name(nvmlDevice_t device, unsigned which, unsigned* value) { \
    return get(#name, device, which, value);                                \
  }
RCUDA_NVML_CHOICES(DEFINE_CHOICE)

#define DEFINE_PAIR(name, type)                                       \
  nvmlReturn_t name(nvmlDevice_t device, type* first, type* second) { \
    return get_pair(#name, device, first, second);                    \
  }
RCUDA_NVML_PAIRS(DEFINE_PAIR)

// Reports only the values for `other` 0.
#define DEFINE_GRID(name, type, count, others)                                          \
  nvmlReturn_t name(nvmlDevice_t device, unsigned which, unsigned other, type* value) { \
    return other == 0 ? get(#name, device, which, value) : NVML_ERROR_NOT_SUPPORTED;    \
  }
RCUDA_NVML_GRIDS(DEFINE_GRID)

// Reports only the energy.
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t* values) {
  constexpr unsigned kEnergy = 83, kUnsignedLongLong = 3;
  for (int i = 0; i < count; ++i) {
    values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    if (values[i].fieldId != kEnergy) continue;
    values[i].valueType = kUnsignedLongLong;
    values[i].nvmlReturn = nvmlDeviceGetTotalEnergyConsumption(device, &values[i].value);
  }
  return NVML_SUCCESS;
}

#define DEFINE_TEXT(name) \
  nvmlReturn_t name(nvmlDevice_t, char*, unsigned) { return NVML_ERROR_NOT_SUPPORTED; }
RCUDA_NVML_TEXTS(DEFINE_TEXT)

}  // extern "C"
