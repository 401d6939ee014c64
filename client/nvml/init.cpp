// Initialisation and shutdown, error texts, and queries of the whole system.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>

#include <cuda.h>
#include <unistd.h>

#include "client/nvml/handles.h"
#include "common/nvml/nvml_functions.h"

namespace rcuda::client::nvml {
namespace {

std::atomic<int> users{0};  // calls of nvmlInit minus calls of nvmlShutdown

// The handle of a device is the address of its element in `places`, so it differs from all other
// pointers.
constexpr uint32_t kMostDevices = 4096;
char places[kMostDevices];

// Returns the driver version of the first server that reports one. `cuda_version` becomes the
// lowest CUDA version of all servers, or 0 if no server reports one.
std::string driver_version(uint32_t* cuda_version) {
  uint32_t count = 0;
  std::string version;
  *cuda_version = 0;
  if (Pool::get().count(&count) != NVML_SUCCESS) return version;
  for (uint32_t i = 0; i < count; ++i) {
    View view;
    if (Pool::get().look(i, &view) != NVML_SUCCESS) continue;
    if (version.empty()) version = view.report->driver_version;
    const uint32_t cuda = view.report->cuda_version;
    if (cuda != 0) *cuda_version = *cuda_version == 0 ? cuda : std::min(*cuda_version, cuda);
  }
  return version;
}

// Returns the same version as cuDriverGetVersion(): that of the oldest server, or of the client if
// the client is older.
nvmlReturn_t get_cuda_version(int* version) {
  if (!version) return NVML_ERROR_INVALID_ARGUMENT;
  uint32_t cuda = 0;
  (void)driver_version(&cuda);
  if (cuda == 0) return NVML_ERROR_LIBRARY_NOT_FOUND;
  *version = std::min(static_cast<int>(cuda), CUDA_VERSION);
  return NVML_SUCCESS;
}

nvmlReturn_t count_devices(unsigned* count) {
  if (const nvmlReturn_t result = check_initialized(); result != NVML_SUCCESS) return result;
  return count ? Pool::get().count(count) : NVML_ERROR_INVALID_ARGUMENT;
}

}  // namespace

nvmlReturn_t check_initialized() {
  return users.load() > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t handle_of(uint32_t index, nvmlDevice_t* handle) {
  uint32_t count = 0;
  if (const nvmlReturn_t result = Pool::get().count(&count); result != NVML_SUCCESS) return result;
  if (!handle || index >= count || index >= kMostDevices) return NVML_ERROR_INVALID_ARGUMENT;
  *handle = reinterpret_cast<nvmlDevice_t>(&places[index]);
  return NVML_SUCCESS;
}

nvmlReturn_t index_of(nvmlDevice_t handle, uint32_t* index) {
  if (const nvmlReturn_t result = check_initialized(); result != NVML_SUCCESS) return result;
  const char* place = reinterpret_cast<const char*>(handle);
  uint32_t count = 0;
  if (const nvmlReturn_t result = Pool::get().count(&count); result != NVML_SUCCESS) return result;
  if (std::less<>()(place, places) || !std::less<>()(place, places + kMostDevices) ||
      static_cast<uint32_t>(place - places) >= count) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *index = static_cast<uint32_t>(place - places);
  return NVML_SUCCESS;
}

nvmlReturn_t look(nvmlDevice_t handle, View* view, bool now) {
  uint32_t index = 0;
  if (const nvmlReturn_t result = index_of(handle, &index); result != NVML_SUCCESS) return result;
  return Pool::get().look(index, view, now);
}

nvmlReturn_t put(const std::string& text, char* to, unsigned length) {
  if (!to) return NVML_ERROR_INVALID_ARGUMENT;
  if (text.empty()) return NVML_ERROR_NOT_SUPPORTED;
  if (text.size() >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(to, text.c_str(), text.size() + 1);
  return NVML_SUCCESS;
}

}  // namespace rcuda::client::nvml

using namespace rcuda::client::nvml;

extern "C" {

// The symbol shows a server that it has loaded this library instead of the driver's.
extern const char nvml_of_rcuda = 1;

// Does not query servers: some programs only test whether NVML exists, and use no GPU.
nvmlReturn_t nvmlInit_v2() {
  users.fetch_add(1);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlInit() { return nvmlInit_v2(); }
// Ignores the published flags, NVML_INIT_FLAG_NO_GPUS and NVML_INIT_FLAG_NO_ATTACH: rcuda's
// nvmlInit_v2 succeeds without GPUs and attaches none.
nvmlReturn_t nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }

nvmlReturn_t nvmlShutdown() {
  int now = users.load();
  do {
    if (now <= 0) return NVML_ERROR_UNINITIALIZED;
  } while (!users.compare_exchange_weak(now, now - 1));
  return NVML_SUCCESS;
}

const char* nvmlErrorString(nvmlReturn_t result) {
  static constexpr const char* kTexts[] = {
      "Success",
      "Uninitialized",
      "Invalid Argument",
      "Not Supported",
      "Insufficient Permissions",
      "Already Initialized",
      "Not Found",
      "Insufficient Size",
      "Insufficient External Power",
      "Driver Not Loaded",
      "Timeout",
      "Interrupt Request Issue",
      "NVML Shared Library Not Found",
      "Function Not Found",
      "Corrupted infoROM",
      "GPU is lost",
      "GPU requires reset",
      "GPU access blocked by the operating system",
      "Driver/library version mismatch",
      "In use by another client",
      "Insufficient Memory",
      "No data",
      "vGPU ECC not supported",
      "Insufficient Resources",
      "Frequency not supported",
      "Argument version mismatch",
      "Deprecated",
      "System is not ready",
      "GPU was not found",
      "Invalid State",
  };
  return result < std::size(kTexts) ? kTexts[result] : "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned length) {
  if (const nvmlReturn_t result = check_initialized(); result != NVML_SUCCESS) return result;
  uint32_t cuda = 0;
  return put(driver_version(&cuda), version, length);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char* version, unsigned length) {
  uint32_t cuda = 0;
  const std::string driver = driver_version(&cuda);
  return put(driver.empty() ? "" : std::to_string(cuda / 1000) + "." + driver, version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) { return get_cuda_version(version); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) { return get_cuda_version(version); }

// Finds only processes of this machine.
nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char* name, unsigned length) {
  if (!name || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
  char path[64], command[4096];
  std::snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  std::FILE* file = std::fopen(path, "re");
  if (!file) return NVML_ERROR_NOT_FOUND;
  const size_t got = std::fread(command, 1, sizeof command - 1, file);
  std::fclose(file);
  command[got] = '\0';
  if (!*command) return NVML_ERROR_NOT_FOUND;
  std::snprintf(name, length, "%s", command);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetHicVersion(unsigned* count, void*) {
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlUnitGetCount(unsigned* count) { return nvmlSystemGetHicVersion(count, nullptr); }
nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned* count) {
  return nvmlSystemGetHicVersion(count, nullptr);
}

// NCCL calls nvmlDeviceGetCount_v2 without checking that it exists.
nvmlReturn_t nvmlDeviceGetCount(unsigned* count) { return count_devices(count); }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) { return count_devices(count); }

}  // extern "C"
