#include "tools/rcuda-exporter/families.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "common/base/version.h"
#include "common/nvml/figures.h"
#include "tools/base/server_query.h"

namespace rcuda::exporter {
namespace {

using prometheus::MetricType;

struct Described {
  const char* name;
  MetricType type;
  const char* help;
};

// The name, type and help text of every metric.
constexpr std::array kMetrics{
    Described{"rcuda_exporter_info", MetricType::Gauge, "The exporter's version and build"},
    Described{"rcuda_up", MetricType::Gauge, "Whether the server answered"},
    Described{"rcuda_server_info", MetricType::Gauge,
              "The server's host, driver, version and build"},
    Described{"rcuda_sessions", MetricType::Gauge, "Active sessions"},
    Described{"rcuda_sessions_disconnected", MetricType::Gauge,
              "Sessions whose connection is lost and may come back"},
    Described{"rcuda_sessions_parked", MetricType::Gauge,
              "Sessions whose GPU memory is in the host's memory"},
    Described{"rcuda_parked_bytes", MetricType::Gauge, "GPU memory that is in the host's memory"},
    Described{"rcuda_parks_total", MetricType::Counter, "How often sessions were parked"},
    Described{"rcuda_wakes_total", MetricType::Counter, "How often parked sessions were woken"},
    Described{"rcuda_parked_seconds_total", MetricType::Counter,
              "Total parked time of the sessions that have woken"},
    Described{"rcuda_parks_for_room_total", MetricType::Counter,
              "How often sessions were parked because other sessions needed GPU memory"},
    Described{"rcuda_room_refusals_total", MetricType::Counter,
              "Allocations that failed because no session could be parked for them"},
    Described{"rcuda_session_seconds", MetricType::Gauge, "Age of the oldest session"},
    Described{"rcuda_sessions_limit", MetricType::Gauge, "Limit of concurrent sessions"},
    Described{"rcuda_waiting_clients", MetricType::Gauge, "Clients that wait for a session"},
    Described{"rcuda_idle_workers", MetricType::Gauge, "Workers that wait for a session"},
    Described{"rcuda_sessions_started_total", MetricType::Counter, "Sessions that began"},
    Described{"rcuda_commands_total", MetricType::Counter, "Client commands that were executed"},
    Described{"rcuda_failed_commands_total", MetricType::Counter,
              "Commands that ended with an error"},
    Described{"rcuda_launches_total", MetricType::Counter, "Launches of kernels"},
    Described{"rcuda_graph_launches_total", MetricType::Counter, "Launches of graphs"},
    Described{"rcuda_copies_total", MetricType::Counter, "Copies, without those of graphs"},
    Described{"rcuda_copied_bytes_total", MetricType::Counter,
              "Bytes copied, without those of graphs"},
    Described{"rcuda_peer_copies_total", MetricType::Counter,
              "Copies that were sent to another server"},
    Described{"rcuda_refused_clients_total", MetricType::Counter, "Clients that were refused"},
    Described{"rcuda_worker_starts_total", MetricType::Counter, "Workers that became ready"},
    Described{"rcuda_worker_failures_total", MetricType::Counter, "Workers that could not start"},
    Described{"rcuda_worker_start_seconds_total", MetricType::Counter,
              "Total start time of the workers that became ready"},
    Described{"rcuda_gpu_info", MetricType::Gauge, "The GPU's name"},
    Described{"rcuda_gpu_sessions", MetricType::Gauge, "Sessions that have the GPU"},
    Described{"rcuda_gpu_leases", MetricType::Gauge, "Leases of the GPU"},
    Described{"rcuda_gpu_lease_end_timestamp_seconds", MetricType::Gauge,
              "When the exclusive lease of the GPU ends, in seconds since 1970"},
    Described{"rcuda_gpu_memory_total_bytes", MetricType::Gauge, "Memory of the GPU"},
    Described{"rcuda_gpu_memory_used_bytes", MetricType::Gauge, "Memory of the GPU in use"},
    Described{"rcuda_gpu_memory_quota_bytes", MetricType::Gauge,
              "Memory of the GPU that the exporter's user may use"},
    Described{"rcuda_gpu_memory_quota_used_bytes", MetricType::Gauge,
              "Memory in use that counts against this quota"},
    Described{"rcuda_user_gpu_memory_bytes", MetricType::Gauge,
              "Memory in use by a user's sessions"},
    Described{"rcuda_session_gpu_memory_bytes", MetricType::Gauge, "Memory in use by a session"},
    Described{"rcuda_session_gpu_memory_quota_bytes", MetricType::Gauge,
              "Memory of the GPU that a session may use"},
    Described{"rcuda_gpu_utilization_ratio", MetricType::Gauge,
              "Fraction of time in which kernels ran"},
    Described{"rcuda_gpu_memory_utilization_ratio", MetricType::Gauge,
              "Fraction of time in which memory was read or written"},
    Described{"rcuda_gpu_temperature_celsius", MetricType::Gauge, "Temperature of the GPU"},
    Described{"rcuda_gpu_power_watts", MetricType::Gauge, "Power draw of the GPU"},
    Described{"rcuda_gpu_power_limit_watts", MetricType::Gauge, "Power limit of the GPU"},
    Described{"rcuda_gpu_energy_joules_total", MetricType::Counter,
              "Energy that the GPU has used since the driver was loaded"},
    Described{"rcuda_gpu_clock_hertz", MetricType::Gauge, "Clocks of the GPU"},
};

struct Figure {
  const char* name;
  nvml::Figure figure;
  double unit;
};

constexpr std::array kFigures{
    Figure{"rcuda_gpu_utilization_ratio", nvml::figure_nvmlDeviceGetUtilizationRates, 0.01},
    Figure{"rcuda_gpu_temperature_celsius", nvml::figure_nvmlDeviceGetTemperature, 1},
    Figure{"rcuda_gpu_power_watts", nvml::figure_nvmlDeviceGetPowerUsage, 1e-3},
    Figure{"rcuda_gpu_power_limit_watts", nvml::figure_nvmlDeviceGetEnforcedPowerLimit, 1e-3},
    Figure{"rcuda_gpu_energy_joules_total", nvml::figure_nvmlDeviceGetTotalEnergyConsumption, 1e-3},
};

struct Count {
  const char* name;
  wire::Counter counter;
};

constexpr std::array kCounts{
    Count{"rcuda_commands_total", wire::Counter::kCommands},
    Count{"rcuda_failed_commands_total", wire::Counter::kFailedCommands},
    Count{"rcuda_launches_total", wire::Counter::kLaunches},
    Count{"rcuda_graph_launches_total", wire::Counter::kGraphLaunches},
    Count{"rcuda_copies_total", wire::Counter::kCopies},
};

// Values of the label `direction` of rcuda_copied_bytes_total.
constexpr std::array kDirections{
    Count{"to_device", wire::Counter::kBytesToDevice},
    Count{"to_host", wire::Counter::kBytesToHost},
    Count{"on_server", wire::Counter::kBytesOnServer},
    Count{"to_server", wire::Counter::kBytesToServer},
    Count{"from_server", wire::Counter::kBytesFromServer},
};

// The parts of a counter's name, such as "peer_copies_shm_host".
struct PeerWay {
  std::string route, staging;
};

PeerWay way_of(std::string_view name) {
  name.remove_prefix(wire::kPeerCopiesName.size());
  const size_t gap = name.find('_');
  return {std::string(name.substr(0, gap)), std::string(name.substr(gap + 1))};
}

// Indexed by nvmlClockType_t.
constexpr std::array kClocks{"graphics", "sm", "memory", "video"};

}  // namespace

void Families::add(const char* name, const Labels& labels, double value) {
  const auto described =
      std::find_if(kMetrics.begin(), kMetrics.end(),
                   [&](const Described& metric) { return std::string_view(metric.name) == name; });
  prometheus::MetricFamily& family = families_[name];
  family.name = name;
  family.help = described->help;
  family.type = described->type;
  prometheus::ClientMetric metric;
  for (const auto& [label, text] : labels) metric.label.push_back({label, text});
  (family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  family.metric.push_back(std::move(metric));
}

void Families::add_exporter() {
  add("rcuda_exporter_info", {{"version", version()}, {"build", build_id()}}, 1);
}

void Families::add_missing(const std::string& server) { add("rcuda_up", {{"server", server}}, 0); }

void Families::add_server(const std::string& server, const wire::ServerStatus& status) {
  const Labels labels{{"server", server}};
  add("rcuda_up", labels, 1);
  add("rcuda_server_info",
      {{"server", server},
       {"host", status.server},
       {"driver", status.driver},
       {"version", status.version},
       {"build", status.build}},
      1);
  add("rcuda_sessions_limit", labels, status.max_sessions);
  add("rcuda_waiting_clients", labels, status.waiting);
  add("rcuda_idle_workers", labels, status.idle_workers);
  std::map<std::pair<std::string, std::string>, int> sessions;
  uint64_t oldest = 0;
  int disconnected = 0, parked = 0;
  uint64_t parked_bytes = 0;
  for (const wire::ServerStatus::Session& session : status.sessions) {
    ++sessions[{session.user, session.medium}];
    oldest = std::max(oldest, session.seconds);
    if (session.lost_seconds) ++disconnected;
    if (!session.park.empty() && session.park != "parking") ++parked;
    parked_bytes += session.parked_bytes;
  }
  for (const auto& [of, count] : sessions) {
    add("rcuda_sessions", {{"server", server}, {"user", of.first}, {"medium", of.second}}, count);
  }
  add("rcuda_sessions_disconnected", labels, disconnected);
  add("rcuda_sessions_parked", labels, parked);
  add("rcuda_parked_bytes", labels, static_cast<double>(parked_bytes));
  add("rcuda_session_seconds", labels, static_cast<double>(oldest));
  add_totals(server, status.totals);
}

void Families::add_totals(const std::string& server, const wire::ServerStatus::Totals& totals) {
  // Without counts, adds no totals: a user who may not see all sessions receives only zeros.
  const bool refused = std::any_of(totals.refused.begin(), totals.refused.end(),
                                   [](uint64_t clients) { return clients != 0; });
  if (totals.worker_starts == 0 && totals.worker_failures == 0 && !refused) return;
  const auto count = [&](const char* name, const Labels& labels, uint64_t value) {
    add(name, labels, static_cast<double>(value));
  };
  const Labels labels{{"server", server}};
  for (size_t code = 1; code < totals.refused.size(); ++code) {  // 0 means success
    count("rcuda_refused_clients_total",
          {{"server", server}, {"reason", to_string(static_cast<Code>(code))}},
          totals.refused[code]);
  }
  count("rcuda_worker_starts_total", labels, totals.worker_starts);
  count("rcuda_worker_failures_total", labels, totals.worker_failures);
  count("rcuda_parks_total", labels, totals.parks);
  count("rcuda_wakes_total", labels, totals.wakes);
  count("rcuda_parked_seconds_total", labels, totals.parked_seconds);
  count("rcuda_parks_for_room_total", labels, totals.parks_for_room);
  count("rcuda_room_refusals_total", labels, totals.room_refusals);
  add("rcuda_worker_start_seconds_total", labels,
      static_cast<double>(totals.worker_start_us) * 1e-6);
  for (const wire::ServerStatus::UserTotals& user_totals : totals.users) {
    Labels of{{"server", server}, {"user", user_totals.user}, {"medium", user_totals.medium}};
    count("rcuda_sessions_started_total", of, user_totals.sessions);
    for (const auto& [name, counter] : kCounts) count(name, of, user_totals.work[counter]);
    for (size_t i = static_cast<size_t>(wire::Counter::kPeerCopies); i < wire::kWorkNames.size();
         ++i) {
      // Skips zeros: a user has copies for only a few pairs of route and staging.
      if (user_totals.work.counts[i] == 0) continue;
      const auto [route, staging] = way_of(wire::kWorkNames[i]);
      Labels way = of;
      way["route"] = route;
      way["staging"] = staging;
      count("rcuda_peer_copies_total", way, user_totals.work.counts[i]);
    }
    for (const auto& [direction, counter] : kDirections) {
      of["direction"] = direction;
      count("rcuda_copied_bytes_total", of, user_totals.work[counter]);
    }
  }
}

void Families::add_memory(const Labels& labels, const wire::ServerStatus& status,
                          const wire::GpuReport::Gpu& gpu) {
  const auto add_bytes = [&](const char* name, const Labels& of, uint64_t bytes) {
    if (bytes != wire::kUnknownFigure) add(name, of, static_cast<double>(bytes));
  };
  add_bytes("rcuda_gpu_memory_total_bytes", labels, gpu.total_bytes);
  add_bytes("rcuda_gpu_memory_used_bytes", labels, gpu.used_bytes);
  if (gpu.quota_bytes != 0) {
    add_bytes("rcuda_gpu_memory_quota_bytes", labels, gpu.quota_bytes);
    add_bytes("rcuda_gpu_memory_quota_used_bytes", labels, gpu.quota_used_bytes);
  }
  struct Use {
    uint64_t bytes = 0, quota = 0;
  };
  std::map<std::string, uint64_t> bytes_of_user;
  std::map<const wire::ServerStatus::Session*, Use> use_of;
  for (const wire::GpuReport::Process& process : gpu.processes) {
    const wire::ServerStatus::Session* const session = tools::session_of(status, gpu, process);
    if (!session || process.used_bytes == wire::kUnknownFigure) continue;
    bytes_of_user[session->user] += process.used_bytes;
    use_of[session].bytes += process.used_bytes;
    use_of[session].quota = process.quota_bytes;
  }
  Labels of = labels;
  for (const auto& [user, bytes] : bytes_of_user) {
    of["user"] = user;
    add_bytes("rcuda_user_gpu_memory_bytes", of, bytes);
  }
  for (const auto& [session, use] : use_of) {
    of["user"] = session->user;
    of["worker"] = std::to_string(session->worker_pid);
    add_bytes("rcuda_session_gpu_memory_bytes", of, use.bytes);
    if (use.quota != 0) add_bytes("rcuda_session_gpu_memory_quota_bytes", of, use.quota);
  }
}

void Families::add_leases(const Labels& labels, const wire::ServerStatus& status,
                          uint32_t ordinal) {
  const wire::ServerStatus::Leased leased = tools::leases_of(status, ordinal);
  const std::pair<const char*, uint32_t> kinds[] = {{"exclusive", leased.id.empty() ? 0 : 1},
                                                    {"shared", leased.shared}};
  for (const auto& [kind, count] : kinds) {
    Labels of = labels;
    of["kind"] = kind;
    add("rcuda_gpu_leases", of, count);
  }
  if (leased.until == 0) return;
  add("rcuda_gpu_lease_end_timestamp_seconds", labels, static_cast<double>(leased.until));
}

void Families::add_gpus(const std::string& server, const wire::ServerStatus& status,
                        const wire::GpuReport& report) {
  for (const wire::GpuReport::Gpu& gpu : report.gpus) {
    Labels labels{{"server", server}, {"gpu", std::to_string(gpu.ordinal)}, {"uuid", gpu.uuid}};
    const auto with = [&](const char* label, const std::string& text) {
      Labels more = labels;
      more[label] = text;
      return more;
    };
    add("rcuda_gpu_info", with("name", gpu.name), 1);
    add_memory(labels, status, gpu);
    add_leases(labels, status, gpu.ordinal);
    int sessions = 0;
    for (const auto& session : status.sessions) {
      sessions +=
          static_cast<int>(std::count(session.devices.begin(), session.devices.end(), gpu.ordinal));
    }
    add("rcuda_gpu_sessions", labels, sessions);
    for (const Figure& figure : kFigures) {
      if (const auto value = tools::figure_of(report, gpu, figure.figure)) {
        add(figure.name, labels, static_cast<double>(*value) * figure.unit);
      }
    }
    const auto memory_busy =
        tools::figure_of(report, gpu, nvml::figure_nvmlDeviceGetUtilizationRates + 1);
    if (memory_busy) {
      add("rcuda_gpu_memory_utilization_ratio", labels, static_cast<double>(*memory_busy) * 0.01);
    }
    for (size_t i = 0; i < kClocks.size(); ++i) {
      const auto megahertz = tools::figure_of(report, gpu, nvml::figure_nvmlDeviceGetClockInfo + i);
      if (megahertz) {
        add("rcuda_gpu_clock_hertz", with("clock", kClocks[i]),
            static_cast<double>(*megahertz) * 1e6);
      }
    }
  }
}

std::vector<prometheus::MetricFamily> Families::take() {
  std::vector<prometheus::MetricFamily> taken;
  for (auto& [name, family] : families_) taken.push_back(std::move(family));
  families_.clear();
  return taken;
}

}  // namespace rcuda::exporter
