// The part of NVML's C interface that this repository uses: codes, constants and structs, with the
// names and values that programs are compiled with. NVIDIA's header is not included, because the
// toolkit packages on PyPI contain no nvml.h. client/nvml and softgpu/nvml define functions of this
// interface, and server/monitor calls them. figures.h declares most of these functions.
//
// Declarations only. NVML's functions may be called from any thread.
#pragma once

#include <cstddef>

extern "C" {

enum nvmlReturn_t : unsigned {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NO_PERMISSION = 4,
  NVML_ERROR_ALREADY_INITIALIZED = 5,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_INSUFFICIENT_POWER = 8,
  NVML_ERROR_DRIVER_NOT_LOADED = 9,
  NVML_ERROR_TIMEOUT = 10,
  NVML_ERROR_IRQ_ISSUE = 11,
  NVML_ERROR_LIBRARY_NOT_FOUND = 12,
  NVML_ERROR_FUNCTION_NOT_FOUND = 13,
  NVML_ERROR_CORRUPTED_INFOROM = 14,
  NVML_ERROR_GPU_IS_LOST = 15,
  NVML_ERROR_RESET_REQUIRED = 16,
  NVML_ERROR_OPERATING_SYSTEM = 17,
  NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
  NVML_ERROR_IN_USE = 19,
  NVML_ERROR_MEMORY = 20,
  NVML_ERROR_NO_DATA = 21,
  NVML_ERROR_VGPU_ECC_NOT_SUPPORTED = 22,
  NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
  NVML_ERROR_FREQ_NOT_SUPPORTED = 24,
  NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
  NVML_ERROR_DEPRECATED = 26,
  NVML_ERROR_NOT_READY = 27,
  NVML_ERROR_GPU_NOT_FOUND = 28,
  NVML_ERROR_INVALID_STATE = 29,
  NVML_ERROR_UNKNOWN = 999,
};

// The capabilities of a pair of devices, and the status of a capability.
enum nvmlGpuP2PCapsIndex_t : unsigned {
  NVML_P2P_CAPS_INDEX_READ = 0,
  NVML_P2P_CAPS_INDEX_WRITE = 1,
  NVML_P2P_CAPS_INDEX_NVLINK = 2,
  NVML_P2P_CAPS_INDEX_ATOMICS = 3,
  NVML_P2P_CAPS_INDEX_PCI = 4,
};
inline constexpr unsigned kNvmlP2PCaps = 5;
enum nvmlGpuP2PStatus_t : unsigned {
  NVML_P2P_STATUS_OK = 0,
  NVML_P2P_STATUS_NOT_SUPPORTED = 5,
  NVML_P2P_STATUS_UNKNOWN = 6,
};

// The nearest common ancestor of two devices in the PCI tree.
enum nvmlGpuTopologyLevel_t : unsigned {
  NVML_TOPOLOGY_INTERNAL = 0,
  NVML_TOPOLOGY_SINGLE = 10,
  NVML_TOPOLOGY_MULTIPLE = 20,
  NVML_TOPOLOGY_HOSTBRIDGE = 30,
  NVML_TOPOLOGY_NODE = 40,
  NVML_TOPOLOGY_SYSTEM = 50,
};

inline constexpr unsigned kNvmlNvLinks = 18;
// The kind of the device at the other end of an NVLink.
enum nvmlIntNvLinkDeviceType_t : unsigned {
  NVML_NVLINK_DEVICE_TYPE_GPU = 0,
  NVML_NVLINK_DEVICE_TYPE_IBMNPU = 1,
  NVML_NVLINK_DEVICE_TYPE_SWITCH = 2,
};
inline constexpr unsigned long long kNvmlNotAvailable = ~0ull;  // NVML_VALUE_NOT_AVAILABLE

typedef struct nvmlDevice_st* nvmlDevice_t;
typedef struct nvmlEventSet_st* nvmlEventSet_t;

struct nvmlPciInfo_t {
  char busIdLegacy[16];
  unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
};
static_assert(sizeof(nvmlPciInfo_t) == 68);

struct nvmlPciInfoExt_v1_t {
  unsigned version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
  char busId[32];
};
static_assert(sizeof(nvmlPciInfoExt_v1_t) == 64);

struct nvmlMemory_t {
  unsigned long long total, free, used;
};
struct nvmlMemory_v2_t {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
static_assert(sizeof(nvmlMemory_v2_t) == 40);

struct nvmlProcessInfo_v1_t {
  unsigned pid;
  unsigned long long usedGpuMemory;
};
struct nvmlProcessInfo_v2_t {  // also used by _v3
  unsigned pid;
  unsigned long long usedGpuMemory;
  unsigned gpuInstanceId, computeInstanceId;
};
static_assert(sizeof(nvmlProcessInfo_v2_t) == 24);

struct nvmlTemperature_v1_t {
  unsigned version, sensorType;
  int temperature;
};

struct nvmlGpuFabricInfo_t {
  unsigned char clusterUuid[16];
  nvmlReturn_t status;
  unsigned cliqueId;
  unsigned char state;  // 0: the GPU has no fabric
};
struct nvmlGpuFabricInfo_v2_t {
  unsigned version;
  unsigned char clusterUuid[16];
  nvmlReturn_t status;
  unsigned cliqueId;
  unsigned char state;
  unsigned healthMask;
};
static_assert(sizeof(nvmlGpuFabricInfo_v2_t) == 36);

// Fields whose scope is an NVLink.
inline constexpr unsigned kNvmlNvLinkStateField = 165;    // NVML_FI_DEV_NVLINK_GET_STATE
inline constexpr unsigned kNvmlNvLinkVersionField = 166;  // NVML_FI_DEV_NVLINK_GET_VERSION
inline constexpr unsigned NVML_VALUE_TYPE_UNSIGNED_INT = 1;

struct nvmlFieldValue_t {
  unsigned fieldId, scopeId;
  long long timestamp, latencyUsec;
  unsigned valueType;
  nvmlReturn_t nvmlReturn;
  unsigned long long value;
};
static_assert(sizeof(nvmlFieldValue_t) == 40);

}  // extern "C"

// The version that a caller writes into a versioned struct of this size.
constexpr unsigned nvml_version(size_t bytes, unsigned version) {
  return static_cast<unsigned>(bytes) | version << 24;
}
