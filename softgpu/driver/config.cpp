#include "softgpu/driver/config.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <unistd.h>

#include "api/exports/driver_version.h"
#include "common/base/fnv1a.h"
#include "common/base/log.h"
#include "common/base/unique_fd.h"
#include "common/base/units.h"
#include "softgpu/driver/device.h"

namespace softgpu::driver {
namespace {

using rcuda::Code;
using rcuda::Result;
using rcuda::Status;

constexpr int kMaxConnections = 32;  // the largest CUDA_DEVICE_MAX_CONNECTIONS
constexpr int kMaxThreads = 1024;
constexpr int kMaxMilliseconds = 60'000;

Configuration& stored() {
  static auto* instance = new Configuration;
  return *instance;
}

Status malformed(const char* name, const char* text, const char* expected) {
  return Status(Code::kInvalidArgument,
                std::string(name) + "=" + text + " is malformed; it must be " + expected);
}

Result<size_t> read_memory(const char* name, const char* text) {
  constexpr uint64_t kLeast = 64u << 10, kMost = uint64_t{64} << 40;
  const std::optional<uint64_t> bytes = rcuda::parse_bytes(text);
  if (bytes && *bytes >= kLeast && *bytes <= kMost) return *bytes;
  return malformed(name, text, "a size such as 512M or 1.5G, from 64K to 64T");
}

Result<int> read_driver_version() {
  constexpr const char* kName = "SOFTGPU_DRIVER_VERSION";
  const char* text = std::getenv(kName);
  if (!text) return CUDA_VERSION;
  char* end = nullptr;
  const long number = std::strtol(text, &end, 10);
  if (end == text || *end != '\0' || number < rcuda::api::kOldestDriver || number > 99990 ||
      number % 10 != 0) {
    return malformed(kName, text,
                     "1000 * major + 10 * minor of a CUDA version from 12.4 on, such as 12040");
  }
  return static_cast<int>(number);
}

Result<double> parse_decimal(const char* name, const char* text) {
  char* end = nullptr;
  const double number = std::strtod(text, &end);
  if (end == text || *end != '\0' || !std::isfinite(number) || number < 0 || number > 1e9) {
    return malformed(name, text, "a decimal number from 0 to 1e9");
  }
  return number;
}

}  // namespace

Result<Configuration> read_configuration() {
  Configuration result;
  result.variables = rcuda::cuda::read_driver_variables();
  if (const char* text = std::getenv("SOFTGPU_LOG")) {
    if (!rcuda::set_log_level(text)) {
      return malformed("SOFTGPU_LOG", text, "trace, debug, info, warn, error or off");
    }
  }
  Result<int> version = read_driver_version();
  if (!version) return version.status();
  result.driver_version = *version;
  if (const char* text = std::getenv("SOFTGPU_NODE")) result.node = text;
  if (const char* text = std::getenv("SOFTGPU_NO_ROOM")) result.no_room = text;
  if (const char* text = std::getenv("SOFTGPU_SHARED_MEMORY")) result.shared_memory = text;
  if (const char* text = std::getenv("SOFTGPU_COPY_LOG")) result.copy_log = text;
  int init_ms = 0, context_ms = 0, context_end_ms = 0;
  const struct {
    const char* name;
    int most;
    int* value;
  } counts[] = {{"SOFTGPU_DEVICES", kMaxDevices, &result.devices},
                {"SOFTGPU_NVLINKS", 4, &result.nvlinks},
                {"SOFTGPU_NVLINK_END", 2, &result.nvlink_end},
                {"SOFTGPU_CONNECTIONS", kMaxConnections, &result.connections},
                {"SOFTGPU_THREADS", kMaxThreads, &result.threads},
                {"SOFTGPU_INIT_MS", kMaxMilliseconds, &init_ms},
                {"SOFTGPU_CONTEXT_MS", kMaxMilliseconds, &context_ms},
                {"SOFTGPU_CONTEXT_END_MS", kMaxMilliseconds, &context_end_ms},
                {"SOFTGPU_MPS", 1, &result.mps},
                {"SOFTGPU_MIG", 1, &result.mig},
                {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", 100, &result.mps_percent}};
  for (const auto& count : counts) {
    const char* text = std::getenv(count.name);
    if (!text || (count.value == &result.mps_percent && result.mps == 0)) continue;
    char* end = nullptr;
    const long number = std::strtol(text, &end, 10);
    if (end == text || *end != '\0' || number < 0 || number > count.most) {
      return malformed(count.name, text,
                       ("a number from 0 to " + std::to_string(count.most)).c_str());
    }
    *count.value = static_cast<int>(number);
  }
  result.init_time = std::chrono::milliseconds(init_ms);
  result.context_time = std::chrono::milliseconds(context_ms);
  result.context_end_time = std::chrono::milliseconds(context_end_ms);
  if (const char* text = std::getenv("SOFTGPU_MEMORY")) {
    Result<size_t> bytes = read_memory("SOFTGPU_MEMORY", text);
    if (!bytes) return bytes.status();
    result.memory_bytes = *bytes;
  }
  if (const char* text = std::getenv("SOFTGPU_CONTEXT_MEMORY")) {
    Result<size_t> bytes = read_memory("SOFTGPU_CONTEXT_MEMORY", text);
    if (!bytes) return bytes.status();
    result.context_bytes = *bytes;
  }
  const struct {
    const char* name;
    double* value;
  } decimals[] = {{"SOFTGPU_PCIE_GBPS", &result.pcie_bytes_per_ns},
                  {"SOFTGPU_PEER_GBPS", &result.peer_bytes_per_ns}};
  for (const auto& decimal : decimals) {
    if (const char* text = std::getenv(decimal.name)) {
      Result<double> value = parse_decimal(decimal.name, text);
      if (!value) return value.status();
      *decimal.value = *value;
    }
  }
  if (const char* text = std::getenv("SOFTGPU_PCIE_LATENCY_US")) {
    Result<double> value = parse_decimal("SOFTGPU_PCIE_LATENCY_US", text);
    if (!value) return value.status();
    result.pcie_latency_ns = std::llround(*value * 1000);
  }
  return result;
}

// Two FNV-1a hashes, with different seeds, of the machine's id, the node's name and the ordinal.
CUuuid device_uuid(const Configuration& configuration, int ordinal) {
  char machine[64] = {};
  rcuda::UniqueFd file(::open("/etc/machine-id", O_RDONLY | O_CLOEXEC));
  if (!file || ::read(file.get(), machine, sizeof machine - 1) <= 0) {
    ::gethostname(machine, sizeof machine - 1);
  }
  const std::string name = machine + ("softgpu" + configuration.node) + static_cast<char>(ordinal);
  CUuuid uuid{};
  for (uint64_t half = 0; half < 2; ++half) {
    const uint64_t hash = rcuda::fnv1a(name, rcuda::fnv1a("") ^ (half + 1));
    std::memcpy(uuid.bytes + 8 * half, &hash, 8);
  }
  return uuid;
}

std::string device_file_name(int ordinal) { return "softgpu-device-" + std::to_string(ordinal); }

int driver_version() {
  static const int version = [] {
    const Result<int> read = read_driver_version();
    return read.ok() ? *read : CUDA_VERSION;
  }();
  return version;
}

const Configuration& configuration() { return stored(); }
void set_configuration(const Configuration& configuration) { stored() = configuration; }

}  // namespace softgpu::driver

int rcuda::api::find_driver_version() { return softgpu::driver::driver_version(); }
