#include "tools/rcuda-smi/look.h"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/date_text.h"
#include "common/base/printable.h"
#include "common/base/units.h"
#include "tools/rcuda-smi/figures.h"

namespace rcuda::smi {

std::vector<Look> look(const std::vector<tools::Server>& servers) {
  const auto at = std::chrono::steady_clock::now();
  std::vector<tools::Told> reports = tools::ask_all(servers);
  std::vector<Look> looks;
  for (size_t i = 0; i < servers.size(); ++i) {
    Look& look = looks.emplace_back();
    look.server = servers[i].text();
    look.at = at;
    look.error = reports[i].status.status();
    if (reports[i].status.ok()) look.status = std::move(reports[i].status).value();
    if (reports[i].gpus.ok()) {
      look.gpus = std::move(reports[i].gpus).value();
    } else if (look.error.ok()) {
      look.gpus_error = reports[i].gpus.status();
    }
    // The status may lack the GPUs if the server had no idle worker before the GPU query.
    if (!look.status.devices.empty()) continue;
    for (const wire::GpuReport::Gpu& gpu : look.gpus.gpus) {
      look.status.devices.push_back({gpu.ordinal, gpu.name, gpu.total_bytes});
    }
  }
  return looks;
}

// ---- text --------------------------------------------------------------------------------------

std::string memory_text(std::optional<uint64_t> bytes) { return bytes ? bytes_text(*bytes) : "-"; }

std::string age_text(uint64_t seconds) {
  return rounded_time_text(std::chrono::seconds(static_cast<int64_t>(seconds)));
}

std::string cut(std::string text, size_t length) {
  return text.size() <= length ? text : printable(text.substr(0, length - 1)) + "~";
}

std::string lease_text(const wire::ServerStatus& status, uint32_t ordinal) {
  const wire::ServerStatus::Leased leased = tools::leases_of(status, ordinal);
  if (leased.id.empty()) {
    if (leased.shared == 0) return {};
    return fmt::format(", {} shared lease{}", leased.shared, leased.shared == 1 ? "" : "s");
  }
  return fmt::format(
      ", leased{}{} (lease {})", leased.user.empty() ? "" : " to " + leased.user,
      leased.until == 0 ? "" : " until " + date_text(static_cast<std::time_t>(leased.until)),
      leased.id);
}

std::string device_line(const Look& look, const wire::ServerStatus::Device& device) {
  const wire::GpuReport::Gpu* const gpu = gpu_of(look, device.ordinal);
  const auto busy = gpu ? utilization(look, *gpu) : std::nullopt;
  const auto watts = gpu ? power_watts(look, *gpu) : std::nullopt;
  const long sessions = sessions_on(look.status, device.ordinal);
  std::string line = fmt::format(
      "device {:<3} {:<24} {:>9} of {:<9} {:>4} {:>6}  {} session{}", device.ordinal,
      cut(device.name, 24), memory_text(gpu ? tools::known(gpu->used_bytes) : std::nullopt),
      memory_text(gpu ? gpu->total_bytes : device.total_bytes),
      busy ? fmt::format("{:.0f}%", *busy * 100) : "-",
      watts ? fmt::format("{:.0f} W", *watts) : "-", sessions, sessions == 1 ? "" : "s");
  if (gpu && gpu->quota_bytes != 0) {
    line += fmt::format(", your quota: {} of {}", memory_text(gpu->quota_used_bytes),
                        memory_text(gpu->quota_bytes));
  }
  return line + lease_text(look.status, device.ordinal) + (device.draining ? ", draining\n" : "\n");
}

std::string text_of(const Look& look) {
  const wire::ServerStatus& status = look.status;
  std::string text = fmt::format(
      "{} ({}): {}{} of {} sessions, {}{} idle worker{}; rcuda {} (build {}), {}\n", look.server,
      status.server, status.draining ? "draining, " : "", status.sessions.size(),
      status.max_sessions, status.waiting == 0 ? "" : fmt::format("{} waiting, ", status.waiting),
      status.idle_workers, status.idle_workers == 1 ? "" : "s", status.version, status.build,
      status.driver);
  if (!status.nccl.empty()) text += fmt::format("  {}\n", status.nccl);
  for (const wire::ServerStatus::Device& device : status.devices) {
    text += "  " + device_line(look, device);
  }
  for (const wire::ServerStatus::Session& session : status.sessions) {
    text += fmt::format(
        "  session {:<8} {} on {}, pid {}, over {}, {}, {}, worker {}: {}{}{}{}{}\n",
        fmt::join(session.devices, ","), session.user, session.host, session.client_pid,
        session.medium, age_text(session.seconds), memory_text(memory_of(look, session)),
        session.worker_pid, session.program, session.job.empty() ? "" : ", job " + session.job,
        session.priority == 0 ? "" : fmt::format(", priority {}", session.priority),
        session.lost_seconds ? ", disconnected for " + age_text(*session.lost_seconds) : "",
        session.park.empty() ? "" : ", " + park_text(session));
  }
  return text;
}

std::string park_text(const wire::ServerStatus::Session& session) {
  if (session.park.empty() || session.park == "parking") return session.park;
  return fmt::format("{}{}, {} in the host's memory", session.park == "parked" ? "" : "parked, ",
                     session.park == "parked"    ? "parked for " + age_text(session.parked_seconds)
                     : session.park == "waiting" ? "waits for free memory on its GPUs"
                                                 : session.park,
                     bytes_text(session.parked_bytes));
}

std::string list_of(const Look& look) {
  std::string text;
  for (const wire::ServerStatus::Device& device : look.status.devices) {
    const wire::GpuReport::Gpu* const gpu = gpu_of(look, device.ordinal);
    text += fmt::format("GPU {}: {} (UUID: {}) {}\n", device.ordinal, device.name,
                        gpu ? gpu->uuid : "-", device_name(look, device.ordinal));
  }
  return text;
}

std::string device_name(const Look& look, uint32_t ordinal) {
  std::string server = look.server;
  server[server.rfind(':')] = '@';
  return fmt::format("{}:{}", server, ordinal);
}

// ---- JSON --------------------------------------------------------------------------------------

namespace {

// Texts come from clients and need not be UTF-8.
constexpr auto kReplace = nlohmann::json::error_handler_t::replace;

nlohmann::json number_of(std::optional<double> figure) {
  return figure ? nlohmann::json(*figure) : nlohmann::json();
}

nlohmann::json number_of(std::optional<uint64_t> figure) {
  return figure ? nlohmann::json(*figure) : nlohmann::json();
}

nlohmann::json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::json() : nlohmann::json(text);
}

nlohmann::json device_json(const Look& look, const wire::ServerStatus::Device& device) {
  nlohmann::json json = {{"ordinal", device.ordinal},
                         {"name", device.name},
                         {"total_bytes", device.total_bytes},
                         {"draining", device.draining},
                         {"sessions", sessions_on(look.status, device.ordinal)}};
  const wire::ServerStatus::Leased leased = tools::leases_of(look.status, device.ordinal);
  json["lease"] = text_or_null(leased.id);
  json["lease_user"] = text_or_null(leased.user);
  json["lease_until"] =
      text_or_null(leased.until == 0 ? "" : date_text(static_cast<std::time_t>(leased.until)));
  json["shared_leases"] = leased.shared;
  if (const wire::GpuReport::Gpu* const gpu = gpu_of(look, device.ordinal)) {
    json["uuid"] = gpu->uuid;
    json["pci_bus_id"] = gpu->pci_bus_id;
    json["total_bytes"] = gpu->total_bytes;
    json["used_bytes"] = number_of(tools::known(gpu->used_bytes));
    const bool has_quota = gpu->quota_bytes != 0;
    json["quota_bytes"] = number_of(has_quota ? std::optional(gpu->quota_bytes) : std::nullopt);
    json["quota_used_bytes"] =
        number_of(has_quota ? std::optional(gpu->quota_used_bytes) : std::nullopt);
    json["utilization"] = number_of(utilization(look, *gpu));
    json["power_watts"] = number_of(power_watts(look, *gpu));
  }
  return json;
}

nlohmann::json session_json(const Look& look, const wire::ServerStatus::Session& session) {
  nlohmann::json json = {{"user", session.user},
                         {"host", session.host},
                         {"pid", session.client_pid},
                         {"program", session.program},
                         {"medium", session.medium},
                         {"devices", session.devices},
                         {"seconds", session.seconds},
                         {"worker", session.worker_pid},
                         {"job", session.job},
                         {"priority", session.priority},
                         {"used_bytes", number_of(memory_of(look, session))},
                         {"quota_bytes", number_of(quota_of(look, session))},
                         {"losses", session.losses},
                         {"lost_seconds", number_of(session.lost_seconds)},
                         {"park", session.park},
                         {"park_way", session.park_way},
                         {"park_refused", session.park_refused},
                         {"parked_bytes", session.parked_bytes},
                         {"parked_seconds", session.parked_seconds}};
  for (size_t i = 0; i < wire::kWorkNames.size(); ++i) {
    json[wire::kWorkNames[i]] = session.work.counts[i];
  }
  return json;
}

}  // namespace

std::string json_text_of(const nlohmann::json& json, int indent) {
  return json.dump(indent, ' ', false, kReplace) + "\n";
}

nlohmann::json json_of(const Look& look) {
  if (!look.error.ok()) return {{"server", look.server}, {"error", look.error.context()}};
  const wire::ServerStatus& status = look.status;
  nlohmann::json json = {{"server", look.server},
                         {"host", status.server},
                         {"version", status.version},
                         {"build", status.build},
                         {"driver", status.driver},
                         {"nccl", status.nccl},
                         {"draining", status.draining},
                         {"max_sessions", status.max_sessions},
                         {"waiting", status.waiting},
                         {"idle_workers", status.idle_workers},
                         {"gpus_error", look.gpus_error.context()},
                         {"devices", nlohmann::json::array()},
                         {"sessions", nlohmann::json::array()}};
  for (const auto& device : status.devices) json["devices"].push_back(device_json(look, device));
  for (const auto& session : status.sessions) {
    json["sessions"].push_back(session_json(look, session));
  }
  return json;
}

}  // namespace rcuda::smi
