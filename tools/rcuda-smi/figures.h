// Figures from a Look (look.h); nullopt for a figure that the server does not know.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "common/nvml/figures.h"
#include "tools/rcuda-smi/look.h"

namespace rcuda::smi {

std::string memory_text(std::optional<uint64_t> bytes);
std::string age_text(uint64_t seconds);
// Returns the end of a device's line about its leases, such as ", leased to ada until ..."; empty
// without leases.
std::string lease_text(const wire::ServerStatus& status, uint32_t ordinal);
// Cuts a text to at most `length` characters.
std::string cut(std::string text, size_t length);
// Returns the line of a GPU for both views (text and top): name, memory, utilisation, power,
// sessions, this user's quota.
std::string device_line(const Look& look, const wire::ServerStatus::Device& device);

// Returns the fraction of the time in which kernels ran, from 0 to 1.
inline std::optional<double> utilization(const Look& look, const wire::GpuReport::Gpu& gpu) {
  const auto percent = tools::figure_of(look.gpus, gpu, nvml::figure_nvmlDeviceGetUtilizationRates);
  return percent ? std::optional(static_cast<double>(*percent) / 100) : std::nullopt;
}

inline std::optional<double> power_watts(const Look& look, const wire::GpuReport::Gpu& gpu) {
  const auto milliwatts = tools::figure_of(look.gpus, gpu, nvml::figure_nvmlDeviceGetPowerUsage);
  return milliwatts ? std::optional(static_cast<double>(*milliwatts) / 1000) : std::nullopt;
}

inline const wire::GpuReport::Gpu* gpu_of(const Look& look, uint32_t ordinal) {
  const auto found = std::find_if(look.gpus.gpus.begin(), look.gpus.gpus.end(),
                                  [&](const auto& gpu) { return gpu.ordinal == ordinal; });
  return found == look.gpus.gpus.end() ? nullptr : &*found;
}

inline long sessions_on(const wire::ServerStatus& status, uint32_t ordinal) {
  return std::count_if(status.sessions.begin(), status.sessions.end(), [&](const auto& session) {
    return std::count(session.devices.begin(), session.devices.end(), ordinal) > 0;
  });
}

// Returns the device memory of a session on all its GPUs together, in bytes. `session`: an element
// of look.status.sessions.
inline std::optional<uint64_t> memory_of(const Look& look,
                                         const wire::ServerStatus::Session& session) {
  std::optional<uint64_t> bytes;
  for (const wire::GpuReport::Gpu& gpu : look.gpus.gpus) {
    for (const wire::GpuReport::Process& process : gpu.processes) {
      if (tools::session_of(look.status, gpu, process) != &session) continue;
      if (tools::known(process.used_bytes)) bytes = bytes.value_or(0) + process.used_bytes;
    }
  }
  return bytes;
}

// Returns the session's memory limit on each of its GPUs, in bytes; nullopt if it has no limit, or
// the server does not report it.
inline std::optional<uint64_t> quota_of(const Look& look,
                                        const wire::ServerStatus::Session& session) {
  for (const wire::GpuReport::Gpu& gpu : look.gpus.gpus) {
    for (const wire::GpuReport::Process& process : gpu.processes) {
      if (process.quota_bytes == 0) continue;
      if (tools::session_of(look.status, gpu, process) == &session) return process.quota_bytes;
    }
  }
  return std::nullopt;
}

}  // namespace rcuda::smi
