#include "client/nvml/pool.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "client/pool/pci_address.h"
#include "client/pool/pool_uuids.h"
#include "client/settings/settings.h"
#include "common/base/first_report.h"
#include "common/base/host_port.h"
#include "common/base/list_text.h"
#include "common/base/log.h"
#include "common/reach/ask.h"

namespace rcuda::client::nvml {
namespace {

constexpr auto kFresh = std::chrono::milliseconds(200);
constexpr auto kRetry = std::chrono::seconds(1);
// The pause after a failure to find the GPUs of RCUDA_DEVICES by their UUIDs.
constexpr auto kListPause = std::chrono::seconds(5);
// A server that does not answer is queried only once in this time for its PCI addresses, which
// look() needs for GPUs of all servers.
constexpr auto kRetryForOthers = std::chrono::seconds(60);

// Returns the position of a GPU in the report, or report.gpus.size() if the report lacks the GPU.
size_t place_of(const wire::GpuReport& report, uint32_t gpu) {
  const auto found = std::find_if(report.gpus.begin(), report.gpus.end(),
                                  [gpu](const auto& one) { return one.ordinal == gpu; });
  return static_cast<size_t>(found - report.gpus.begin());
}

// Reports a device of RCUDA_DEVICES that its server does not have. If the program's own session was
// refused for the same reason, the reason is not reported again.
void report_missing(const std::string& server, uint32_t gpu, const wire::GpuReport& report) {
  std::vector<uint32_t> ordinals;
  for (const auto& one : report.gpus) ordinals.push_back(one.ordinal);
  const std::string offered = list_of(ordinals);
  const std::string of_session = server +
                                 ": the session was refused: the server does not offer device " +
                                 std::to_string(gpu) + "; it offers " + offered;
  const std::string text =
      report.gpus.empty()
          ? server + " does not know its devices yet: try again, or see the log of that server"
          : server + " does not offer device " + std::to_string(gpu) + " (it offers " + offered +
                "): correct RCUDA_DEVICES";
  if (first_report(of_session)) RCUDA_WARN("NVML: %s", text.c_str());
}

const char* variable(const char* name) { return ::secure_getenv(name); }

}  // namespace

Pool& Pool::get() {
  static auto* pool = new Pool;  // never deleted: programs may call until they exit
  return *pool;
}

nvmlReturn_t Pool::count(uint32_t* count) {
  MutexLock lock(mutex_);
  if (const nvmlReturn_t result = read_list(); result != NVML_SUCCESS) return result;
  *count = static_cast<uint32_t>(devices_.size());
  return NVML_SUCCESS;
}

nvmlReturn_t Pool::look(uint32_t index, View* view, bool now) {
  MutexLock lock(mutex_);
  if (const nvmlReturn_t result = read_list(); result != NVML_SUCCESS) return result;
  if (index >= devices_.size()) return NVML_ERROR_INVALID_ARGUMENT;
  const Device& device = devices_[index];
  Server& server = servers_[device.server];
  ask(&server, now);
  name_addresses();
  if (!server.report) return NVML_ERROR_GPU_IS_LOST;
  view->place = place_of(*server.report, device.gpu);
  if (view->place == server.report->gpus.size()) {
    report_missing(host_and_port(server.host, server.port), device.gpu, *server.report);
    return NVML_ERROR_GPU_IS_LOST;
  }
  view->index = index;
  view->server = device.server;
  view->pci_bus_id = device.pci_bus_id;
  view->report = server.report;
  return NVML_SUCCESS;
}

bool Pool::shows_neighbours(const View& view) {
  MutexLock lock(mutex_);
  const Server& server = servers_[view.server];
  const auto of_server = [&](const std::vector<DeviceAddress>& list) {
    return std::count_if(list.begin(), list.end(), [&](const DeviceAddress& device) {
      return device.host == server.host && device.port == server.port;
    });
  };
  const auto all = of_server(pool_);
  const auto visible =
      visible_devices(pool_, variable, [this]() RCUDA_REQUIRES(mutex_) { return uuids(); });
  return all > 1 && visible.ok() && of_server(visible->devices) == all;
}

// Returns the UUIDs of all devices; the UUID is empty if the device's server does not answer.
Result<std::vector<std::string>> Pool::uuids() {
  std::vector<std::string> all;
  for (const Device& device : devices_) {
    Server& server = servers_[device.server];
    ask(&server);
    const auto& report = server.report;
    const size_t place = report ? place_of(*report, device.gpu) : 0;
    all.push_back(report && place < report->gpus.size() ? report->gpus[place].uuid : "");
  }
  return all;
}

nvmlReturn_t Pool::read_list() {
  if (read_ || Clock::now() < read_from_) return result_;
  read_ = true;
  const auto fail = [&](const Status& status) RCUDA_REQUIRES(mutex_) {
    if (first_report(status.context())) {
      RCUDA_ERROR("NVML has no GPUs: %s", status.context().c_str());
    }
    return result_ = NVML_ERROR_UNKNOWN;
  };
  if (const Status status = load_settings(); !status.ok()) return fail(status);
  if (settings().log.get().find(':') != std::string::npos) {
    set_log_level(LogLevel::kOff);  // RCUDA_LOG names a file, to which librcuda.so writes
  } else if (const Status status = configure_log(); !status.ok()) {
    return fail(status);
  }
  auto pool = devices_from(variable);
  if (!pool.ok()) return fail(pool.status());
  if (const Status status = resolve_uuids(&*pool, Clock::now()); !status.ok()) {
    read_ = false;  // the server may answer later
    read_from_ = Clock::now() + kListPause;
    return fail(status);
  }
  result_ = NVML_SUCCESS;
  const auto servers = group_by_server(*pool);
  if (!servers.ok()) return fail(servers.status());
  pool_ = *pool;
  devices_.resize(pool->size());
  for (const ServerDevices& named : *servers) {
    // The medium does not matter here: a server that is named with two media is one server.
    auto known = std::find_if(servers_.begin(), servers_.end(), [&](const Server& server) {
      return server.host == named.host && server.port == named.port;
    });
    if (known == servers_.end()) {
      Server server;
      server.host = named.host;
      server.port = named.port;
      known = servers_.insert(servers_.end(), std::move(server));
    }
    for (size_t i = 0; i < named.gpus.size(); ++i) {
      devices_[named.ordinals[i]] = {static_cast<uint32_t>(known - servers_.begin()), named.gpus[i],
                                     ""};
    }
  }
  return NVML_SUCCESS;
}

// Queries the server, unless its report is fresh or the last query failed a moment ago. Afterwards
// `report` is fresh or null.
void Pool::ask(Server* server, bool now) {
  const bool asked = server->asked_at != Clock::time_point::min();
  const auto age = asked ? Clock::now() - server->asked_at : Clock::duration::max();
  if (server->report ? !now && age < kFresh : age < kRetry) return;
  server->report = nullptr;
  const auto body = wire::ask(server->host, server->port, wire::MessageType::kGpuQuery, {},
                              wire::MessageType::kGpuReport);
  auto report =
      body.ok() ? wire::decode<wire::GpuReport>(*body) : Result<wire::GpuReport>(body.status());
  server->asked_at = Clock::now();
  if (report.ok()) {
    server->report = std::make_shared<const wire::GpuReport>(std::move(report).value());
    server->failure.clear();
    server->has_answered = true;
  } else if (server->failure != report.status().context()) {
    server->failure = report.status().context();
    const bool is_new = first_report(server->failure);
    if (is_new || server->has_answered) RCUDA_WARN("NVML: %s", server->failure.c_str());
    server->has_answered = false;
  }
}

// Assigns each device the address that cuDeviceGetPCIBusId() reports. An assigned address never
// changes. A server that does not answer is skipped until it does.
void Pool::name_addresses() {
  for (uint32_t number = 0; number < servers_.size(); ++number) {
    const auto lacks = [&](const Device& device) {
      return device.server == number && device.pci_bus_id.empty();
    };
    if (std::none_of(devices_.begin(), devices_.end(), lacks)) continue;
    const Server& server = servers_[number];
    const bool failed = !server.report && server.asked_at != Clock::time_point::min();
    if (failed && Clock::now() - server.asked_at < kRetryForOthers) continue;
    ask(&servers_[number]);
    const auto& report = servers_[number].report;
    if (!report) continue;
    for (Device& device : devices_) {
      const size_t place = lacks(device) ? place_of(*report, device.gpu) : report->gpus.size();
      if (place == report->gpus.size()) continue;
      const std::string& own = report->gpus[place].pci_bus_id;
      const auto domain =
          other_pci_domain(own, [&](const std::string& address) RCUDA_REQUIRES(mutex_) {
            return std::any_of(devices_.begin(), devices_.end(),
                               [&](const Device& known) { return known.pci_bus_id == address; });
          });
      device.pci_bus_id = domain ? with_pci_domain(own, *domain) : own;
    }
  }
}

}  // namespace rcuda::client::nvml
