// libnvidia-ml.so.1 as programs load it: by name, without linking. First checks the answers before
// CUDA is initialised, then that the answers about devices agree with the driver API.
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include <cuda.h>
#include <dlfcn.h>

#include "../programs/driver_checks.h"
#include "client/nvml/nvml_api.h"

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
  // None of these calls initialises CUDA, so a program may still fork.
  CHECK(NVML(nvmlDeviceGetCount_v2)(&count) == NVML_ERROR_NOT_SUPPORTED);
  CHECK(count == 77);
  int devices;
  EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&devices));

  // Symbols that PyTorch works without.
  CHECK(!dlsym(library, "nvmlInit"));
  CHECK(!dlsym(library, "nvmlDeviceGetGpuFabricInfoV"));
}

void of_the_system() {
  int version = 0, nvml_version = 0;
  char name[80] = "as it was";
  CU(cuDriverGetVersion(&version));
  CHECK(NVML(nvmlSystemGetCudaDriverVersion)(&nvml_version) == NVML_SUCCESS);
  CHECK(nvml_version == version);
  CHECK(NVML(nvmlSystemGetCudaDriverVersion_v2)(&nvml_version) == NVML_SUCCESS);
  CHECK(nvml_version == version);
  CHECK(NVML(nvmlSystemGetCudaDriverVersion_v2)(nullptr) == NVML_ERROR_INVALID_ARGUMENT);
  CHECK(NVML(nvmlSystemGetDriverVersion)(name, sizeof name) == NVML_ERROR_NOT_SUPPORTED);
  CHECK(std::strcmp(name, "as it was") == 0);
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

void of_a_device(CUdevice device) {
  const nvmlDevice_t handle = find_device(device);
  int major, minor, nvml_major, nvml_minor;
  CU(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
  CU(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
  CHECK(NVML(nvmlDeviceGetCudaComputeCapability)(handle, &nvml_major, &nvml_minor) == NVML_SUCCESS);
  CHECK(nvml_major == major && nvml_minor == minor);

  int type;
  CHECK(NVML(nvmlDeviceGetNvLinkRemoteDeviceType)(handle, 0, &type) == NVML_ERROR_NOT_SUPPORTED);
  char pci[128];
  CHECK(NVML(nvmlDeviceGetNvLinkRemotePciInfo_v2)(
            handle, 0, reinterpret_cast<nvmlPciInfo_t*>(pci)) == NVML_ERROR_NOT_SUPPORTED);
  unsigned processes = 8;
  CHECK(NVML(nvmlDeviceGetComputeRunningProcesses)(handle, &processes, nullptr) == NVML_SUCCESS);
  CHECK(processes == 0);
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
  CHECK(NVML(nvmlDeviceGetP2PStatus)(handle, peer_handle, static_cast<nvmlGpuP2PCapsIndex_t>(2),
                                     &status) == NVML_ERROR_NOT_SUPPORTED);
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

  // A query of a device initialises CUDA.
  nvmlDevice_t first;
  unsigned count;
  int devices;
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
  CHECK(NVML(nvmlShutdown)() == NVML_SUCCESS);
  CHECK(NVML(nvmlDeviceGetHandleByIndex_v2)(0, &first) == NVML_ERROR_UNINITIALIZED);
}
