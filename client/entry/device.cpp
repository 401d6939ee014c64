// Devices. All answers come from the data that each worker sent in the handshake.

#include <climits>
#include <cstdio>
#include <cstring>
#include <string>

#include <cuda.h>

#include "client/pool/pci_address.h"
#include "client/process/process.h"
#include "common/base/log.h"
#include "common/cuda/device_properties.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

CUresult attribute(const Device& device, int attribute, int* value) {
  const auto& attributes = device.info.attributes;
  if (attribute <= 0 || static_cast<size_t>(attribute) >= attributes.size()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int32_t known = attributes[static_cast<size_t>(attribute)];
  if (known == INT32_MIN) return CUDA_ERROR_INVALID_VALUE;
  *value = known;
  return CUDA_SUCCESS;
}

// Returns a P2P attribute of two devices. For devices of one worker, this is the driver's value.
// For devices of different servers it is 0: kernels cannot reach the other device. (Copies between
// the devices work.)
int peer_attribute(const Device& device, const Device& peer, int attribute) {
  if (device.session != peer.session) return 0;
  constexpr size_t kAttributes = 4;
  const size_t index = peer.ordinal * kAttributes + static_cast<size_t>(attribute - 1);
  const auto& values = device.info.peer_attributes;
  return index < values.size() ? values[index] : 0;
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return Process::get().initialize();
}

CUresult cuDriverGetVersion(int* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  Process& process = Process::get();
  if (process.check() == CUDA_ERROR_DEINITIALIZED) return CUDA_ERROR_DEINITIALIZED;
  *version = process.driver_version();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  Process& process = Process::get();
  RCUDA_RETURN_IF_CUDA_ERROR(process.check());
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(process.device_count());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  Device* found;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(ordinal, &found));
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice dev) {
  Device* device;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(dev, &device));
  if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(name, static_cast<size_t>(length), "%s", device->info.name.c_str());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
  Device* device;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(dev, &device));
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(uuid->bytes, device->info.uuid, sizeof uuid->bytes);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) { return cuDeviceGetUuid_v2(uuid, dev); }

CUresult cuDeviceGetLuid(char*, unsigned*, CUdevice) { return CUDA_ERROR_NOT_SUPPORTED; }

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  Device* device;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(dev, &device));
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  *bytes = device->info.total_bytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice dev) {
  Device* device;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(dev, &device));
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  return attribute(*device, which, value);
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice dev) {
  Device* device;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(dev, &device));
  if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
  RCUDA_RETURN_IF_CUDA_ERROR(
      attribute(*device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, major));
  return attribute(*device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, minor);
}

CUresult cuDeviceGetProperties(CUdevprop* properties, CUdevice dev) {
  Device* device;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(dev, &device));
  if (!properties) return CUDA_ERROR_INVALID_VALUE;
  const auto get = [&](CUdevice_attribute which) {
    int value = 0;
    (void)attribute(*device, which, &value);
    return value;
  };
  *properties = rcuda::cuda::device_properties(get);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice dev) {
  Device* device;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(dev, &device));
  const std::string& id = device->info.pci_bus_id;
  if (!text || length <= static_cast<int>(id.size())) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(text, static_cast<size_t>(length), "%s", id.c_str());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice* dev, const char* text) {
  Process& process = Process::get();
  RCUDA_RETURN_IF_CUDA_ERROR(process.check());
  if (!dev || !text) return CUDA_ERROR_INVALID_VALUE;
  const auto wanted = parse_pci_address(text);
  if (!wanted) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < process.device_count(); ++i) {
    const Device* device = process.device(static_cast<CUdevice>(i));
    if (parse_pci_address(device->info.pci_bus_id) == wanted) {
      *dev = static_cast<CUdevice>(i);
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int* can_access, CUdevice dev, CUdevice peer_dev) {
  Device *device, *peer;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(dev, &device));
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(peer_dev, &peer));
  if (!can_access) return CUDA_ERROR_INVALID_VALUE;
  *can_access = dev != peer_dev &&
                peer_attribute(*device, *peer, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED) != 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute which, CUdevice dev,
                                 CUdevice peer_dev) {
  Device *device, *peer;
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(dev, &device));
  RCUDA_RETURN_IF_CUDA_ERROR(find_device(peer_dev, &peer));
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  if (dev == peer_dev) return CUDA_ERROR_INVALID_DEVICE;  // even for an unknown attribute
  if (which < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ||
      which > CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *value = peer_attribute(*device, *peer, which);
  return CUDA_SUCCESS;
}

}  // extern "C"
