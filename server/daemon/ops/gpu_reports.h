// The daemon's answer to a GpuQuery, which needs no session: the GPUs as NVML and the first worker
// report them, with the viewer's quota and the processes that the viewer may see. The daemon's only
// thread; nothing blocks.
#pragma once

#include <chrono>
#include <optional>

#include "common/messages/gpu_report.h"
#include "server/daemon/admission/admission.h"
#include "server/daemon/pool/worker_pool.h"
#include "server/monitor/gpu_monitor.h"

namespace rcuda::server {

// How long the answer to a client waits for missing data. NVML starts within this time, unless it
// is broken. The client waits longer for its answer.
inline constexpr auto kLongestReading = std::chrono::seconds(4);

// Returns nothing while NVML is being read or the first worker starts. `late`: kLongestReading is
// over, so this function returns the report without the missing data.
std::optional<wire::GpuReport> report_gpus(const WorkerPool& pool, GpuMonitor& monitor,
                                           const Admission& admission, const Viewer& viewer,
                                           GpuMonitor::Clock::time_point asked_at, bool late);

}  // namespace rcuda::server
