// How devices are connected. Each server reports this for its own GPUs; GPUs of different servers
// have no common ancestor or link.
#include <cstring>

#include "client/nvml/handles.h"
#include "common/nvml/figures.h"
#include "common/nvml/nvml_functions.h"

namespace rcuda::client::nvml {
namespace {

struct Pair {
  View one, other;
  bool same_server() const { return one.server == other.server; }
  // Returns the path between the two GPUs, or null if their server does not report it.
  const wire::GpuReport::Path* path() const {
    const auto& paths = one.gpu().paths;
    return other.place < paths.size() ? &paths[other.place] : nullptr;
  }
};

nvmlReturn_t look(nvmlDevice_t one, nvmlDevice_t other, Pair* pair) {
  if (const nvmlReturn_t result = look(one, &pair->one); result != NVML_SUCCESS) return result;
  return look(other, &pair->other);
}

uint32_t ancestor_of(const Pair& pair) {
  if (!pair.same_server()) return NVML_TOPOLOGY_SYSTEM;
  if (pair.one.index == pair.other.index) return NVML_TOPOLOGY_INTERNAL;
  return pair.path() ? pair.path()->ancestor : static_cast<uint32_t>(NVML_TOPOLOGY_SYSTEM);
}

// Reports a placeholder as the address of a link's other end, like driver 580 in a virtual machine
// that does not see the switch. NCCL concludes from this address that a switch connects all GPUs
// with such links, which is true within a server. Returns NVML_ERROR_NOT_SUPPORTED in four cases:
// - The link is not active.
// - The link does not lead to a switch: the PCI address of the GPU at its end may be the address of
//   another server's GPU in this pool.
// - The pool has only one GPU of this server.
// - CUDA_VISIBLE_DEVICES hides a GPU of this server. Other ranks of NCCL may use hidden GPUs, but a
//   session may not import their memory, so NCCL must use the path through the host.
nvmlReturn_t get_remote_pci(nvmlDevice_t device, unsigned link, nvmlPciInfo_t* pci) {
  unsigned active = 0, other_end = NVML_NVLINK_DEVICE_TYPE_SWITCH;
  if (const nvmlReturn_t result = nvmlDeviceGetNvLinkState(device, link, &active);
      result != NVML_SUCCESS) {
    return result;
  }
  View view;
  if (const nvmlReturn_t result = look(device, &view); result != NVML_SUCCESS) return result;
  if (!pci) return NVML_ERROR_INVALID_ARGUMENT;
  (void)nvmlDeviceGetNvLinkRemoteDeviceType(device, link, &other_end);
  const bool is_other =
      other_end == NVML_NVLINK_DEVICE_TYPE_GPU || other_end == NVML_NVLINK_DEVICE_TYPE_IBMNPU;
  if (!active || is_other || !Pool::get().shows_neighbours(view)) return NVML_ERROR_NOT_SUPPORTED;
  constexpr nvmlPciInfo_t kHidden = {"FFFFFFF:FF:FF.0", 0xffffffff, 0xff, 0xff, 0, 0,
                                     "FFFFFFFF:FF:FF.0"};
  *pci = kHidden;
  return NVML_SUCCESS;
}

}  // namespace
}  // namespace rcuda::client::nvml

using namespace rcuda::client::nvml;

extern "C" {

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other,
                                                 unsigned* level) {
  Pair pair;
  if (const nvmlReturn_t result = look(one, other, &pair); result != NVML_SUCCESS) return result;
  if (!level) return NVML_ERROR_INVALID_ARGUMENT;
  *level = ancestor_of(pair);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned level, unsigned* count,
                                              nvmlDevice_t* list) {
  uint32_t all = 0, own = 0;
  if (const nvmlReturn_t result = index_of(device, &own); result != NVML_SUCCESS) return result;
  if (const nvmlReturn_t result = Pool::get().count(&all); result != NVML_SUCCESS) return result;
  if (!count || (*count != 0 && !list)) return NVML_ERROR_INVALID_ARGUMENT;
  unsigned found = 0;
  for (uint32_t i = 0; i < all; ++i) {
    nvmlDevice_t other;
    Pair pair;
    if (i == own || handle_of(i, &other) != NVML_SUCCESS ||
        look(device, other, &pair) != NVML_SUCCESS || ancestor_of(pair) != level) {
      continue;
    }
    if (found < *count) list[found] = other;
    ++found;
  }
  const bool fits = *count == 0 || found <= *count;
  *count = found;
  return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t other, int* same) {
  Pair pair;
  if (const nvmlReturn_t result = look(one, other, &pair); result != NVML_SUCCESS) return result;
  if (!same) return NVML_ERROR_INVALID_ARGUMENT;
  *same = ancestor_of(pair) == NVML_TOPOLOGY_INTERNAL;
  return NVML_SUCCESS;
}

// Kernels can reach only devices of the same server.
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned what,
                                    nvmlGpuP2PStatus_t* status) {
  Pair pair;
  if (const nvmlReturn_t result = look(one, other, &pair); result != NVML_SUCCESS) return result;
  if (!status || what >= kNvmlP2PCaps) return NVML_ERROR_INVALID_ARGUMENT;
  if (!pair.same_server()) {
    *status = NVML_P2P_STATUS_NOT_SUPPORTED;
  } else if (pair.one.index == pair.other.index) {
    *status = NVML_P2P_STATUS_OK;
  } else if (pair.path() && what < pair.path()->p2p_status.size()) {
    *status = static_cast<nvmlGpuP2PStatus_t>(pair.path()->p2p_status[what]);
  } else {
    *status = NVML_P2P_STATUS_UNKNOWN;
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned link,
                                              nvmlPciInfo_t* pci) {
  return get_remote_pci(device, link, pci);
}
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link,
                                                 nvmlPciInfo_t* pci) {
  return get_remote_pci(device, link, pci);
}

// Reports no fabric, so that NCCL does not search for one: a fabric spans machines, and rcuda's
// servers do not use it.
nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t* info) {
  uint32_t index = 0;
  if (const nvmlReturn_t result = index_of(device, &index); result != NVML_SUCCESS) return result;
  if (!info) return NVML_ERROR_INVALID_ARGUMENT;
  *info = {};
  return NVML_SUCCESS;
}

// Accepts versions of the struct from 2 on: later versions append members to those of version 2.
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v2_t* info) {
  uint32_t index = 0;
  if (const nvmlReturn_t result = index_of(device, &index); result != NVML_SUCCESS) return result;
  if (!info) return NVML_ERROR_INVALID_ARGUMENT;
  const size_t bytes = info->version & 0xffffff;
  if (info->version >> 24 < 2 || bytes < sizeof *info || bytes > 2 * sizeof *info) {
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  }
  std::memset(&info->clusterUuid, 0, bytes - offsetof(nvmlGpuFabricInfo_v2_t, clusterUuid));
  return NVML_SUCCESS;
}

}  // extern "C"
