// Device memory and the processes that use it, as the server reports them. If the user has a quota,
// the quota is shown as the device's size.
#include <algorithm>
#include <string>
#include <vector>

#include "client/nvml/handles.h"
#include "common/base/host_name.h"
#include "common/nvml/nvml_functions.h"

namespace rcuda::client::nvml {
namespace {

constexpr unsigned kNoInstance = ~0u;  // the GPU is not partitioned

// The device memory that this user may use, in bytes.
struct Memory {
  uint64_t total = 0, used = wire::kUnknownFigure, reserved = 0;
  uint64_t taken() const { return std::min(used + reserved, total); }
};

Memory memory_of(const wire::GpuReport::Gpu& gpu) {
  if (gpu.quota_bytes != 0) return {gpu.quota_bytes, gpu.quota_used_bytes, 0};
  return {gpu.total_bytes, gpu.used_bytes, gpu.reserved_bytes};
}

// Finds the sessions of processes of this machine. Process ids of other machines mean nothing here.
nvmlReturn_t processes_of(nvmlDevice_t handle, std::vector<wire::GpuReport::Process>* found) {
  View view;
  if (const nvmlReturn_t result = look(handle, &view, true); result != NVML_SUCCESS) return result;
  const std::string here = host_name();
  for (const wire::GpuReport::Process& process : view.gpu().processes) {
    if (process.host == here) found->push_back(process);
  }
  return NVML_SUCCESS;
}

void write(const wire::GpuReport::Process& process, nvmlProcessInfo_v1_t* to) {
  *to = {process.pid, process.used_bytes};  // NVML and reports have the same value for "unknown"
}
void write(const wire::GpuReport::Process& process, nvmlProcessInfo_v2_t* to) {
  *to = {process.pid, process.used_bytes, kNoInstance, kNoInstance};
}
static_assert(wire::kUnknownFigure == kNvmlNotAvailable);

template <typename Info>
nvmlReturn_t list_processes(nvmlDevice_t handle, unsigned* count, Info* list) {
  std::vector<wire::GpuReport::Process> found;
  const nvmlReturn_t result = processes_of(handle, &found);
  if (result != NVML_SUCCESS) return result;
  if (!count || (*count != 0 && !list)) return NVML_ERROR_INVALID_ARGUMENT;
  const bool fits = found.size() <= *count;
  *count = static_cast<unsigned>(found.size());
  if (!fits) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (const wire::GpuReport::Process& process : found) write(process, list++);
  return NVML_SUCCESS;
}

// Returns an empty list, for kinds of processes that rcuda does not serve.
nvmlReturn_t list_none(nvmlDevice_t handle, unsigned* count) {
  uint32_t index = 0;
  if (const nvmlReturn_t result = index_of(handle, &index); result != NVML_SUCCESS) return result;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

}  // namespace
}  // namespace rcuda::client::nvml

using namespace rcuda::client::nvml;

extern "C" {

// In this version of the function, `used` includes the memory that the driver reserves.
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  View view;
  if (const nvmlReturn_t result = look(device, &view, true); result != NVML_SUCCESS) return result;
  if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
  const Memory told = memory_of(view.gpu());
  if (told.used == rcuda::wire::kUnknownFigure) return NVML_ERROR_NOT_SUPPORTED;
  *memory = {told.total, told.total - told.taken(), told.taken()};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  View view;
  if (const nvmlReturn_t result = look(device, &view, true); result != NVML_SUCCESS) return result;
  if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
  if (memory->version != nvml_version(sizeof *memory, 2)) {
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  }
  const Memory told = memory_of(view.gpu());
  if (told.used == rcuda::wire::kUnknownFigure) return NVML_ERROR_NOT_SUPPORTED;
  *memory = {memory->version, told.total, told.reserved, told.total - told.taken(), told.used};
  return NVML_SUCCESS;
}

// Must succeed: PyTorch calls this function when memory runs out, and treats any other result as a
// bug.
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned* count,
                                                  nvmlProcessInfo_v1_t* list) {
  return list_processes(device, count, list);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                     nvmlProcessInfo_v2_t* list) {
  return list_processes(device, count, list);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                     nvmlProcessInfo_v2_t* list) {
  return list_processes(device, count, list);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned* count, void*) {
  return list_none(device, count);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned* count, void*) {
  return list_none(device, count);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned* count, void*) {
  return list_none(device, count);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned* count, void*) {
  return list_none(device, count);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                        void*) {
  return list_none(device, count);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                        void*) {
  return list_none(device, count);
}

}  // extern "C"
