// libnvidia-ml.so.1 for programs that run on the pool: JAX uses no GPU unless nvmlInit_v2 succeeds,
// and PyTorch and NCCL take it for granted that a machine with a libcuda.so.1 has an NVML. It has
// what these look up, and answers by the driver API of libcuda.so.1, which is librcuda.so.
//
// What is left out, because programs then take another way, which leads to the right answer:
// - nvmlInit, without _v2. PyTorch's Python calls it by that name, before it counts devices by
// NVML. That
//   count may neither start CUDA, since PyTorch forks workers after it, nor leave
//   CUDA_VISIBLE_DEVICES out. Without nvmlInit, PyTorch asks the runtime, as it does on a machine
//   without NVML.
// - nvmlDeviceGetGpuFabricInfoV. Its absence means that the driver knows no fabric.
#include <atomic>
#include <functional>

#include <cuda.h>
#include <dlfcn.h>

#include "client/nvml/nvml_api.h"

namespace {

std::atomic<int> users{0};  // nvmlInit_v2 less nvmlShutdown

// What is called of libcuda.so.1.
struct Driver {
  decltype(&cuInit) init = nullptr;
  decltype(&cuDriverGetVersion) version = nullptr;
  decltype(&cuDeviceGetCount) count = nullptr;
  decltype(&cuDeviceGetByPCIBusId) by_pci_bus_id = nullptr;
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  decltype(&cuDeviceCanAccessPeer) can_access_peer = nullptr;
  decltype(&cuDeviceGetP2PAttribute) p2p_attribute = nullptr;
};

template <typename Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function;
}

// The preloaded library if there is one, else what lies beside this one. Nothing is called yet.
bool load(Driver* driver) {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY);
  return library && find(library, "cuInit", &driver->init) &&
         find(library, "cuDriverGetVersion", &driver->version) &&
         find(library, "cuDeviceGetCount", &driver->count) &&
         find(library, "cuDeviceGetByPCIBusId", &driver->by_pci_bus_id) &&
         find(library, "cuDeviceGetAttribute", &driver->attribute) &&
         find(library, "cuDeviceCanAccessPeer", &driver->can_access_peer) &&
         find(library, "cuDeviceGetP2PAttribute", &driver->p2p_attribute);
}

const Driver* find_driver() {
  static Driver driver;
  static const bool loaded = load(&driver);
  return loaded ? &driver : nullptr;
}

nvmlReturn_t translated(CUresult result) {
  switch (result) {
    case CUDA_SUCCESS:
      return NVML_SUCCESS;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_VALUE:
      return NVML_ERROR_NOT_FOUND;
    default:
      return NVML_ERROR_UNKNOWN;  // the client has logged what happened
  }
}

// The driver, with CUDA started.
nvmlReturn_t start(const Driver** driver) {
  if (users.load() <= 0) return NVML_ERROR_UNINITIALIZED;
  *driver = find_driver();
  return *driver ? translated((*driver)->init(0)) : NVML_ERROR_DRIVER_NOT_LOADED;
}

// A handle is the address of its device's place in here, so that any other pointer is told from
// one.
constexpr int kMostDevices = 4096;
char places[kMostDevices];

nvmlDevice_t handle_of(CUdevice device) { return reinterpret_cast<nvmlDevice_t>(&places[device]); }

nvmlReturn_t device_of(nvmlDevice_t handle, const Driver** driver, CUdevice* device) {
  if (nvmlReturn_t result = start(driver); result != NVML_SUCCESS) return result;
  const char* place = reinterpret_cast<const char*>(handle);
  int count = 0;
  if (nvmlReturn_t result = translated((*driver)->count(&count)); result != NVML_SUCCESS) {
    return result;
  }
  if (std::less<>()(place, places) || !std::less<>()(place, places + kMostDevices) ||
      place - places >= count) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *device = static_cast<CUdevice>(place - places);
  return NVML_SUCCESS;
}

nvmlReturn_t cuda_driver_version(int* version) {
  if (!version) return NVML_ERROR_INVALID_ARGUMENT;
  const Driver* driver = find_driver();
  return driver ? translated(driver->version(version)) : NVML_ERROR_DRIVER_NOT_LOADED;
}

nvmlReturn_t by_index(unsigned index, nvmlDevice_t* handle) {
  const Driver* driver;
  if (nvmlReturn_t result = start(&driver); result != NVML_SUCCESS) return result;
  int count = 0;
  if (nvmlReturn_t result = translated(driver->count(&count)); result != NVML_SUCCESS) {
    return result;
  }
  if (!handle || index >= static_cast<unsigned>(count) || index >= kMostDevices) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *handle = handle_of(static_cast<CUdevice>(index));
  return NVML_SUCCESS;
}

nvmlReturn_t by_pci_bus_id(const char* address, nvmlDevice_t* handle) {
  const Driver* driver;
  if (nvmlReturn_t result = start(&driver); result != NVML_SUCCESS) return result;
  if (!address || !handle) return NVML_ERROR_INVALID_ARGUMENT;
  CUdevice device;
  if (nvmlReturn_t result = translated(driver->by_pci_bus_id(&device, address));
      result != NVML_SUCCESS) {
    return result;
  }
  if (device >= kMostDevices) return NVML_ERROR_NOT_FOUND;
  *handle = handle_of(device);
  return NVML_SUCCESS;
}

// Which links a GPU has only its own machine's NVML knows.
nvmlReturn_t unknown_link(nvmlDevice_t handle, const void* answer) {
  const Driver* driver;
  CUdevice device;
  if (nvmlReturn_t result = device_of(handle, &driver, &device); result != NVML_SUCCESS) {
    return result;
  }
  return answer ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

}  // namespace

extern "C" {

// Starts no session: a program may look whether there is an NVML, and never use CUDA.
nvmlReturn_t nvmlInit_v2() {
  if (!find_driver()) return NVML_ERROR_DRIVER_NOT_LOADED;
  users.fetch_add(1);
  return NVML_SUCCESS;
}

// The flags allow for fewer GPUs than there are.
nvmlReturn_t nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }

nvmlReturn_t nvmlShutdown() {
  int now = users.load();
  do {
    if (now <= 0) return NVML_ERROR_UNINITIALIZED;
  } while (!users.compare_exchange_weak(now, now - 1));
  return NVML_SUCCESS;
}

const char* nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
    case NVML_SUCCESS:
      return "Success";
    case NVML_ERROR_UNINITIALIZED:
      return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
      return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
      return "Not Found";
    case NVML_ERROR_DRIVER_NOT_LOADED:
      return "Driver Not Loaded";
    default:
      return "Unknown Error";
  }
}

// The servers do not tell their drivers' names ("580.95.05"), and may have different ones.
nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned) {
  if (users.load() <= 0) return NVML_ERROR_UNINITIALIZED;
  return version ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) { return cuda_driver_version(version); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return cuda_driver_version(version);
}

// Counts once CUDA runs and does not start it, so that a program which counts by NVML may fork
// after it. NCCL calls this without a look whether there is such a function.
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  if (users.load() <= 0) return NVML_ERROR_UNINITIALIZED;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  const Driver* driver = find_driver();
  if (!driver) return NVML_ERROR_DRIVER_NOT_LOADED;
  int devices = 0;
  const CUresult result = driver->count(&devices);
  if (result == CUDA_ERROR_NOT_INITIALIZED) return NVML_ERROR_NOT_SUPPORTED;
  if (result == CUDA_SUCCESS) *count = static_cast<unsigned>(devices);
  return translated(result);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t* device) {
  return by_index(index, device);
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  return by_index(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* address, nvmlDevice_t* device) {
  return by_pci_bus_id(address, device);
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* address, nvmlDevice_t* device) {
  return by_pci_bus_id(address, device);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int* major, int* minor) {
  const Driver* driver;
  CUdevice device;
  if (nvmlReturn_t result = device_of(handle, &driver, &device); result != NVML_SUCCESS) {
    return result;
  }
  if (!major || !minor) return NVML_ERROR_INVALID_ARGUMENT;
  const CUresult result =
      driver->attribute(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  if (result != CUDA_SUCCESS) return translated(result);
  return translated(driver->attribute(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
}

// What cuDeviceCanAccessPeer says: kernels reach devices of the same server at most.
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t handle, nvmlDevice_t peer_handle,
                                    nvmlGpuP2PCapsIndex_t what, nvmlGpuP2PStatus_t* status) {
  const Driver* driver;
  CUdevice device, peer;
  if (nvmlReturn_t result = device_of(handle, &driver, &device); result != NVML_SUCCESS) {
    return result;
  }
  if (nvmlReturn_t result = device_of(peer_handle, &driver, &peer); result != NVML_SUCCESS) {
    return result;
  }
  if (!status) return NVML_ERROR_INVALID_ARGUMENT;
  int can = device == peer;
  CUresult result = CUDA_SUCCESS;
  switch (what) {
    case NVML_P2P_CAPS_INDEX_READ:
    case NVML_P2P_CAPS_INDEX_WRITE:
      if (!can) result = driver->can_access_peer(&can, device, peer);
      break;
    case NVML_P2P_CAPS_INDEX_ATOMICS:
      if (!can) {
        result = driver->p2p_attribute(&can, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                                       device, peer);
      }
      break;
    default:
      return NVML_ERROR_NOT_SUPPORTED;  // whether it is NVLink or PCIe the driver API does not tell
  }
  if (result == CUDA_SUCCESS) *status = can ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
  return translated(result);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned, int* type) {
  return unknown_link(device, type);
}
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned,
                                                 nvmlPciInfo_t* pci) {
  return unknown_link(device, pci);
}

// None: a server's processes are not of this machine, and their numbers mean nothing here. NVML
// says the same in a container, which does not see other processes. PyTorch asks when memory runs
// out, and takes any code but success for a bug.
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned* count,
                                                  nvmlProcessInfo_v1_t*) {
  const Driver* driver;
  CUdevice device;
  if (nvmlReturn_t result = device_of(handle, &driver, &device); result != NVML_SUCCESS) {
    return result;
  }
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

}  // extern "C"
