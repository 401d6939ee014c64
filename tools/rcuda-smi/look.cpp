#include "tools/rcuda-smi/look.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

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
    // A server without idle workers may have found its GPUs only for the GPU query.
    if (!look.status.devices.empty()) continue;
    for (const wire::GpuReport::Gpu& gpu : look.gpus.gpus) {
      look.status.devices.push_back({gpu.ordinal, gpu.name, gpu.total_bytes});
    }
  }
  return looks;
}

// ---- text --------------------------------------------------------------------------------------

std::string text_of(const Look& look) {
  const wire::ServerStatus& status = look.status;
  std::string text = fmt::format(
      "{} ({}): {}{} of {} sessions, {}{} idle worker{}; {}\n", look.server, status.server,
      status.draining ? "draining, " : "", status.sessions.size(), status.max_sessions,
      status.waiting == 0 ? "" : fmt::format("{} waiting, ", status.waiting), status.idle_workers,
      status.idle_workers == 1 ? "" : "s", status.driver);
  for (const wire::ServerStatus::Device& device : status.devices) {
    const auto users = sessions_on(status, device.ordinal);
    text += fmt::format("  device {:<3} {:<32} {:6.1f} GiB  {} session{}\n", device.ordinal,
                        device.name, static_cast<double>(device.total_bytes) / (1 << 30), users,
                        users == 1 ? "" : "s");
  }
  for (const wire::ServerStatus::Session& session : status.sessions) {
    text += fmt::format("  session {:<8} {} on {}, pid {}, over {}, {} s, worker {}: {}{}\n",
                        fmt::join(session.devices, ","), session.user, session.host,
                        session.client_pid, session.medium, session.seconds, session.worker_pid,
                        session.program, session.job.empty() ? "" : ", job " + session.job);
  }
  return text;
}

// ---- JSON --------------------------------------------------------------------------------------

namespace {

nlohmann::json number_of(std::optional<double> figure) {
  return figure ? nlohmann::json(*figure) : nlohmann::json();
}

nlohmann::json number_of(std::optional<uint64_t> figure) {
  return figure ? nlohmann::json(*figure) : nlohmann::json();
}

nlohmann::json device_json(const Look& look, const wire::ServerStatus::Device& device) {
  nlohmann::json json = {{"ordinal", device.ordinal},
                         {"name", device.name},
                         {"total_bytes", device.total_bytes},
                         {"sessions", sessions_on(look.status, device.ordinal)}};
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
                         {"used_bytes", number_of(memory_of(look, session))},
                         {"quota_bytes", number_of(quota_of(look, session))}};
  for (size_t i = 0; i < wire::kWorkNames.size(); ++i) {
    json[wire::kWorkNames[i]] = session.work.counts[i];
  }
  return json;
}

}  // namespace

nlohmann::json json_of(const Look& look) {
  if (!look.error.ok()) return {{"server", look.server}, {"error", look.error.context()}};
  const wire::ServerStatus& status = look.status;
  nlohmann::json json = {{"server", look.server},
                         {"host", status.server},
                         {"driver", status.driver},
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
