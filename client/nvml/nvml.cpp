// libnvidia-ml.so.1 for programs that use the remote GPUs. JAX uses no GPU unless nvmlInit_v2
// succeeds. PyTorch and NCCL assume that a machine with a libcuda.so.1 has an NVML. This library
// has the functions that they look up. It answers them with the driver API of libcuda.so.1, which
// is librcuda.so.
//
// Two functions are left out. Without them, programs take another path, which gives the right
// answer:
// - nvmlInit, without _v2. PyTorch's Python code calls it by that name before it counts devices
//   with NVML. Such a count must not start CUDA, because PyTorch forks workers after it, and must
//   respect CUDA_VISIBLE_DEVICES. Without nvmlInit, PyTorch asks the runtime, as on a machine
//   without NVML.
// - nvmlDeviceGetGpuFabricInfoV. If it is absent, programs conclude that the driver knows no
//   fabric.
#include <atomic>
#include <functional>

#include <cuda.h>
#include <dlfcn.h>

#include "client/nvml/nvml_api.h"

namespace {

std::atomic<int> users{0};  // calls of nvmlInit_v2 minus calls of nvmlShutdown

// The functions of libcuda.so.1 that this library uses.
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

// Loads the preloaded library if there is one, otherwise the one in this library's folder. Calls
// none of its functions.
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

// Starts CUDA and returns the driver.
nvmlReturn_t start(const Driver** driver) {
  if (users.load() <= 0) return NVML_ERROR_UNINITIALIZED;
  *driver = find_driver();
  return *driver ? translated((*driver)->init(0)) : NVML_ERROR_DRIVER_NOT_LOADED;
}

// A handle is the address of its device's element in `places`. This distinguishes handles from all
// other pointers.
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

// Only the NVML of the server's machine knows the links of a GPU.
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

// Starts no session: a program may only test whether NVML exists, and never use CUDA.
nvmlReturn_t nvmlInit_v2() {
  if (!find_driver()) return NVML_ERROR_DRIVER_NOT_LOADED;
  users.fetch_add(1);
  return NVML_SUCCESS;
}

// The flags only allow for missing GPUs; here nvmlInit_v2 also succeeds without them.
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

// The servers do not report the names of their drivers ("580.95.05"), which may differ.
nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned) {
  if (users.load() <= 0) return NVML_ERROR_UNINITIALIZED;
  return version ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) { return cuda_driver_version(version); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return cuda_driver_version(version);
}

// Counts only if CUDA is initialised, and does not initialise it, so that a program may count with
// NVML and fork afterwards. NCCL calls this function without checking that it exists.
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

// The same answer as cuDeviceCanAccessPeer: kernels reach at most the devices of the same server.
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
      return NVML_ERROR_NOT_SUPPORTED;  // the driver API does not tell NVLink from PCIe
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

// Reports no processes: those on a server do not belong to this machine, and their ids mean nothing
// here. NVML also reports none in a container that cannot see other processes. PyTorch calls this
// when memory runs out, and treats any code but success as a bug.
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
