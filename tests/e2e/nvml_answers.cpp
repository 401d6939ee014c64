// Loads libnvidia-ml.so.1 as programs do: by name, without linking. Checks the answers before CUDA
// is initialised, and then that the answers about devices agree with the driver API. nvml_test.py
// checks what Python programs print.
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include "../programs/driver_checks.h"
#include "common/nvml/figures.h"
#include "common/nvml/nvml_functions.h"

namespace {

void* library;

#define NVML(name) (reinterpret_cast<decltype(&(name))>(find(#name)))

void* find(const char* name) {
  void* function = dlsym(library, name);
  if (!function) std::fprintf(stderr, "there is no %s\n", name);
  CHECK(function);
  return function;
}

void before_cuda_runs() {
  unsigned count = 77;
  nvmlDevice_t device;
  CHECK(NVML(nvmlShutdown)() == NVML_ERROR_UNINITIALIZED);
  CHECK(NVML(nvmlDeviceGetHandleByIndex_v2)(0, &device) == NVML_ERROR_UNINITIALIZED);
  CHECK(NVML(nvmlDeviceGetCount_v2)(&count) == NVML_ERROR_UNINITIALIZED);
  CHECK(NVML(nvmlInit_v2)() == NVML_SUCCESS);
  CHECK(NVML(nvmlInitWithFlags)(1) == NVML_SUCCESS);
  CHECK(NVML(nvmlShutdown)() == NVML_SUCCESS);
  // PyTorch counts devices in this way and forks afterwards, so none of these calls may initialise
  // CUDA.
  CHECK(NVML(nvmlInit)() == NVML_SUCCESS);
  CHECK(NVML(nvmlDeviceGetCount_v2)(&count) == NVML_SUCCESS);
  CHECK(count > 0 && count != 77);
  char uuid[96];
  CHECK(NVML(nvmlDeviceGetHandleByIndex_v2)(0, &device) == NVML_SUCCESS);
  CHECK(NVML(nvmlDeviceGetUUID)(device, uuid, sizeof uuid) == NVML_SUCCESS);
  CHECK(NVML(nvmlShutdown)() == NVML_SUCCESS);
  int devices;
  EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&devices));
}

void of_the_system() {
  int version = 0, nvml_version = 0;
  char name[80] = "as it was";
  char one[1];
  CU(cuDriverGetVersion(&version));
  CHECK(NVML(nvmlSystemGetCudaDriverVersion)(&nvml_version) == NVML_SUCCESS);
  CHECK(nvml_version == version);
  CHECK(NVML(nvmlSystemGetCudaDriverVersion_v2)(&nvml_version) == NVML_SUCCESS);
  CHECK(nvml_version == version);
  CHECK(NVML(nvmlSystemGetCudaDriverVersion_v2)(nullptr) == NVML_ERROR_INVALID_ARGUMENT);
  CHECK(NVML(nvmlSystemGetDriverVersion)(one, sizeof one) == NVML_ERROR_INSUFFICIENT_SIZE);
  CHECK(NVML(nvmlSystemGetDriverVersion)(name, sizeof name) == NVML_SUCCESS);
  CHECK(std::strcmp(name, "580.0.0-softgpu") == 0);
  CHECK(NVML(nvmlSystemGetNVMLVersion)(name, sizeof name) == NVML_SUCCESS);
  CHECK(std::strstr(name, ".580.0.0-softgpu"));
  CHECK(std::strcmp(NVML(nvmlErrorString)(NVML_SUCCESS), "Success") == 0);
  CHECK(std::strcmp(NVML(nvmlErrorString)(NVML_ERROR_NOT_FOUND), "Not Found") == 0);
  CHECK(std::strcmp(NVML(nvmlErrorString)(static_cast<nvmlReturn_t>(31)), "Unknown Error") == 0);
}

nvmlDevice_t find_device(CUdevice device) {
  nvmlDevice_t by_index, by_address;
  char address[32], address_of_nvml[40];
  CHECK(NVML(nvmlDeviceGetHandleByIndex)(static_cast<unsigned>(device), &by_index) == NVML_SUCCESS);
  CU(cuDeviceGetPCIBusId(address, sizeof address, device));
  CHECK(NVML(nvmlDeviceGetHandleByPciBusId)(address, &by_address) == NVML_SUCCESS);
  CHECK(by_address == by_index);
  // NVML and PyTorch write the domain with eight digits.
  unsigned domain, bus, slot;
  CHECK(std::sscanf(address, "%x:%x:%x", &domain, &bus, &slot) == 3);
  std::snprintf(address_of_nvml, sizeof address_of_nvml, "%08X:%02X:%02X.0", domain, bus, slot);
  by_address = nullptr;
  CHECK(NVML(nvmlDeviceGetHandleByPciBusId_v2)(address_of_nvml, &by_address) == NVML_SUCCESS);
  CHECK(by_address == by_index);
  return by_index;
}

void names_of(nvmlDevice_t handle, CUdevice device) {
  char name[96], nvml_name[96], uuid[96], expected[96];
  CUuuid bytes;
  CU(cuDeviceGetName(name, sizeof name, device));
  CHECK(NVML(nvmlDeviceGetName)(handle, nvml_name, sizeof nvml_name) == NVML_SUCCESS);
  CHECK(std::strcmp(name, nvml_name) == 0);
  CU(cuDeviceGetUuid(&bytes, device));
  CHECK(NVML(nvmlDeviceGetUUID)(handle, uuid, sizeof uuid) == NVML_SUCCESS);
  char* to = expected + std::snprintf(expected, sizeof expected, "GPU-");
  for (int i = 0; i < 16; ++i) {
    const char* dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
    to += std::sprintf(to, "%s%02x", dash, static_cast<unsigned char>(bytes.bytes[i]));
  }
  CHECK(std::strcmp(uuid, expected) == 0);
  nvmlDevice_t by_uuid;
  CHECK(NVML(nvmlDeviceGetHandleByUUID)(uuid, &by_uuid) == NVML_SUCCESS);
  CHECK(by_uuid == handle);
  CHECK(NVML(nvmlDeviceGetHandleByUUID)("GPU-0", &by_uuid) == NVML_ERROR_NOT_FOUND);
}

void memory_of(nvmlDevice_t handle, CUdevice device) {
  size_t total;
  CU(cuDeviceTotalMem(&total, device));
  nvmlMemory_t memory;
  CHECK(NVML(nvmlDeviceGetMemoryInfo)(handle, &memory) == NVML_SUCCESS);
  CHECK(memory.total == total && memory.used + memory.free == total);
  nvmlMemory_v2_t apart;
  apart.version = nvml_version(sizeof apart, 1);
  CHECK(NVML(nvmlDeviceGetMemoryInfo_v2)(handle, &apart) == NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  apart.version = nvml_version(sizeof apart, 2);
  CHECK(NVML(nvmlDeviceGetMemoryInfo_v2)(handle, &apart) == NVML_SUCCESS);
  CHECK(apart.reserved + apart.used + apart.free == total);

  // This process has a session on each device.
  unsigned count = 0;
  nvmlProcessInfo_v1_t process;
  nvmlProcessInfo_v2_t processes[4];
  CHECK(NVML(nvmlDeviceGetComputeRunningProcesses)(handle, &count, nullptr) ==
        NVML_ERROR_INSUFFICIENT_SIZE);
  CHECK(count == 1);
  CHECK(NVML(nvmlDeviceGetComputeRunningProcesses)(handle, &count, &process) == NVML_SUCCESS);
  CHECK(process.pid == static_cast<unsigned>(getpid()));
  count = 4;
  CHECK(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(handle, &count, processes) == NVML_SUCCESS);
  CHECK(count == 1 && processes[0].pid == process.pid);
  count = 4;
  CHECK(NVML(nvmlDeviceGetGraphicsRunningProcesses_v3)(handle, &count, processes) == NVML_SUCCESS);
  CHECK(count == 0);
}

// The library also has the functions that rcuda does not support; none of them changes a GPU.
void settings_of(nvmlDevice_t handle) {
  using Setter = nvmlReturn_t (*)(nvmlDevice_t, unsigned);
  for (const char* name : {"nvmlDeviceSetPowerManagementLimit", "nvmlDeviceSetPersistenceMode",
                           "nvmlDeviceSetComputeMode", "nvmlDeviceSetEccMode"}) {
    CHECK(reinterpret_cast<Setter>(find(name))(handle, 1) == NVML_ERROR_NO_PERMISSION);
  }
  CHECK(reinterpret_cast<Setter>(find("nvmlDeviceGetSamples"))(handle, 1) ==
        NVML_ERROR_NOT_SUPPORTED);
}

void of_events(nvmlDevice_t handle) {
  nvmlEventSet_t set = nullptr;
  unsigned long long types = 1;
  CHECK(NVML(nvmlDeviceGetSupportedEventTypes)(handle, &types) == NVML_SUCCESS);
  CHECK(types == 0);
  CHECK(NVML(nvmlEventSetFree)(set) == NVML_ERROR_INVALID_ARGUMENT);
  CHECK(NVML(nvmlEventSetCreate)(&set) == NVML_SUCCESS);
  CHECK(NVML(nvmlEventSetWait_v2)(set, nullptr, 1) == NVML_ERROR_TIMEOUT);
  CHECK(NVML(nvmlEventSetFree)(set) == NVML_SUCCESS);
}

// nvidia-smi asks for such a table.
void of_unpublished_functions() {
  struct Table {
    size_t bytes;
    nvmlReturn_t (*functions[1])();
  };
  using Get = nvmlReturn_t (*)(const Table**, const void*);
  const auto get = reinterpret_cast<Get>(find("nvmlInternalGetExportTable"));
  const Table* table = nullptr;
  CHECK(get(&table, nullptr) == NVML_ERROR_INVALID_ARGUMENT);
  CHECK(get(&table, "any 16 bytes....") == NVML_SUCCESS);
  const size_t count = table->bytes / sizeof(void*) - 1;
  CHECK(count > 269);
  for (size_t i = 0; i < count; ++i) CHECK(table->functions[i]() == NVML_ERROR_NOT_SUPPORTED);
}

void of_a_device(CUdevice device) {
  const nvmlDevice_t handle = find_device(device);
  int major, minor, nvml_major, nvml_minor;
  CU(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
  CU(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
  CHECK(NVML(nvmlDeviceGetCudaComputeCapability)(handle, &nvml_major, &nvml_minor) == NVML_SUCCESS);
  CHECK(nvml_major == major && nvml_minor == minor);

  unsigned type, index;
  CHECK(NVML(nvmlDeviceGetNvLinkRemoteDeviceType)(handle, 0, &type) == NVML_ERROR_NOT_SUPPORTED);
  CHECK(NVML(nvmlDeviceGetNvLinkRemoteDeviceType)(handle, 99, &type) ==
        NVML_ERROR_INVALID_ARGUMENT);
  nvmlPciInfo_t pci;
  CHECK(NVML(nvmlDeviceGetNvLinkRemotePciInfo_v2)(handle, 0, &pci) == NVML_ERROR_NOT_SUPPORTED);
  CHECK(NVML(nvmlDeviceGetIndex)(handle, &index) == NVML_SUCCESS);
  CHECK(static_cast<int>(index) == device);
  nvmlGpuFabricInfo_v2_t fabric;
  fabric.version = nvml_version(sizeof fabric, 2);
  fabric.state = 3;
  CHECK(NVML(nvmlDeviceGetGpuFabricInfoV)(handle, &fabric) == NVML_SUCCESS);
  CHECK(fabric.state == 0);
  fabric.version = 7;
  CHECK(NVML(nvmlDeviceGetGpuFabricInfoV)(handle, &fabric) == NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  names_of(handle, device);
  memory_of(handle, device);
  settings_of(handle);
}

void of_a_pair(CUdevice device, CUdevice peer) {
  nvmlGpuP2PStatus_t status;
  const nvmlDevice_t handle = find_device(device), peer_handle = find_device(peer);
  int can = 1;
  if (device != peer) CU(cuDeviceCanAccessPeer(&can, device, peer));
  for (const auto what : {NVML_P2P_CAPS_INDEX_READ, NVML_P2P_CAPS_INDEX_WRITE}) {
    CHECK(NVML(nvmlDeviceGetP2PStatus)(handle, peer_handle, what, &status) == NVML_SUCCESS);
    CHECK(status == (can ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED));
  }
  if (device != peer) {
    CU(cuDeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, device,
                               peer));
  }
  CHECK(NVML(nvmlDeviceGetP2PStatus)(handle, peer_handle, NVML_P2P_CAPS_INDEX_ATOMICS, &status) ==
        NVML_SUCCESS);
  CHECK(status == (can ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED));
  CHECK(NVML(nvmlDeviceGetP2PStatus)(handle, peer_handle, kNvmlP2PCaps, &status) ==
        NVML_ERROR_INVALID_ARGUMENT);
  // Devices of one server are closer to each other than devices of two.
  unsigned level;
  CHECK(NVML(nvmlDeviceGetTopologyCommonAncestor)(handle, peer_handle, &level) == NVML_SUCCESS);
  CHECK(level == (device == peer ? NVML_TOPOLOGY_INTERNAL
                  : can          ? NVML_TOPOLOGY_NODE
                                 : NVML_TOPOLOGY_SYSTEM));
}

void of_what_is_not_there(unsigned count) {
  nvmlDevice_t device;
  int major, minor;
  for (const char* address : {"0000ABCD:FE:1F.0", "", "nothing"}) {
    CHECK(NVML(nvmlDeviceGetHandleByPciBusId_v2)(address, &device) == NVML_ERROR_NOT_FOUND);
  }
  CHECK(NVML(nvmlDeviceGetHandleByPciBusId_v2)(nullptr, &device) == NVML_ERROR_INVALID_ARGUMENT);
  CHECK(NVML(nvmlDeviceGetHandleByIndex_v2)(count, &device) == NVML_ERROR_INVALID_ARGUMENT);
  const nvmlDevice_t last = find_device(static_cast<CUdevice>(count - 1));
  const auto after_last = reinterpret_cast<nvmlDevice_t>(reinterpret_cast<char*>(last) + 1);
  for (const nvmlDevice_t bad :
       {nvmlDevice_t{}, after_last, reinterpret_cast<nvmlDevice_t>(&major)}) {
    CHECK(NVML(nvmlDeviceGetCudaComputeCapability)(bad, &major, &minor) ==
          NVML_ERROR_INVALID_ARGUMENT);
  }
}

}  // namespace

int main() {
  library = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
  if (!library) std::fprintf(stderr, "%s\n", dlerror());
  CHECK(library);
  before_cuda_runs();

  nvmlDevice_t first;
  unsigned count;
  int devices;
  CU(cuInit(0));
  CHECK(NVML(nvmlDeviceGetHandleByIndex_v2)(0, &first) == NVML_SUCCESS);
  CHECK(NVML(nvmlDeviceGetCount_v2)(&count) == NVML_SUCCESS);
  CU(cuDeviceGetCount(&devices));
  CHECK(static_cast<int>(count) == devices);

  of_the_system();
  for (CUdevice device = 0; device < devices; ++device) {
    of_a_device(device);
    for (CUdevice peer = 0; peer < devices; ++peer) of_a_pair(device, peer);
  }
  of_what_is_not_there(count);
  of_events(first);
  of_unpublished_functions();
  CHECK(NVML(nvmlShutdown)() == NVML_SUCCESS);
  CHECK(NVML(nvmlDeviceGetHandleByIndex_v2)(0, &first) == NVML_ERROR_UNINITIALIZED);
}
