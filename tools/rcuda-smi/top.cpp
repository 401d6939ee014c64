// The screen of rcuda-smi top.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/printable.h"
#include "tools/rcuda-smi/figures.h"
#include "tools/rcuda-smi/look.h"

namespace rcuda::smi {
namespace {

using Session = wire::ServerStatus::Session;

// 1234567 as 1.2M.
std::string scaled(double value, double base = 1000) {
  static constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  while (value >= base && unit + 1 < std::size(kUnits)) {
    value /= base;
    ++unit;
  }
  return fmt::format("{:.{}f}{}", value, unit == 0 || value >= 100 ? 0 : 1, kUnits[unit]);
}

std::string memory_text(std::optional<uint64_t> bytes) {
  return bytes ? scaled(static_cast<double>(*bytes), 1024) : "-";
}

std::string quota_text(const wire::GpuReport::Gpu& gpu) {
  if (gpu.quota_bytes == 0) return "";
  return fmt::format(", your quota: {} of {}", memory_text(gpu.quota_used_bytes),
                     memory_text(gpu.quota_bytes));
}

std::string cut(std::string text, size_t length) {
  return text.size() <= length ? text : printable(text.substr(0, length - 1)) + "~";
}

const Session* find(const std::vector<Look>& looks, const std::string& server,
                    const Session& session) {
  for (const Look& look : looks) {
    if (look.server != server) continue;
    for (const Session& other : look.status.sessions) {
      if (other.worker_pid == session.worker_pid && other.client_pid == session.client_pid &&
          other.host == session.host) {
        return &other;
      }
    }
  }
  return nullptr;
}

struct Row {
  const Look* look;
  const Session* session;
  wire::Work work;  // since the previous look
  double seconds;
  double rate(wire::Counter counter) const { return static_cast<double>(work[counter]) / seconds; }
};

Row row_of(const std::vector<Look>& before, const Look& look, const Session& session) {
  Row row{&look, &session, session.work, std::max<double>(static_cast<double>(session.seconds), 1)};
  const Session* const earlier = find(before, look.server, session);
  if (!earlier) return row;
  for (size_t i = 0; i < row.work.counts.size(); ++i) {
    row.work.counts[i] -= std::min(earlier->work.counts[i], row.work.counts[i]);
  }
  for (const Look& one : before) {
    if (one.server != look.server) continue;
    row.seconds = std::max(std::chrono::duration<double>(look.at - one.at).count(), 1e-3);
  }
  return row;
}

std::string server_lines(const Look& look) {
  if (!look.error.ok()) return fmt::format("{}: {}\n", look.server, look.error.context());
  std::string text =
      fmt::format("{}: {}{} session{}, {} waiting, {} idle worker{}\n", look.server,
                  look.status.draining ? "draining, " : "", look.status.sessions.size(),
                  look.status.sessions.size() == 1 ? "" : "s", look.status.waiting,
                  look.status.idle_workers, look.status.idle_workers == 1 ? "" : "s");
  if (!look.gpus_error.ok()) text += fmt::format("  {}\n", look.gpus_error.context());
  for (const wire::ServerStatus::Device& device : look.status.devices) {
    const wire::GpuReport::Gpu* const gpu = gpu_of(look, device.ordinal);
    const auto busy = gpu ? utilization(look, *gpu) : std::nullopt;
    const auto watts = gpu ? power_watts(look, *gpu) : std::nullopt;
    const long sessions = sessions_on(look.status, device.ordinal);
    text += fmt::format("  gpu {:<3} {:<24} {:>7} of {:<7} {:>4} {:>6}  {} session{}{}\n",
                        device.ordinal, cut(device.name, 24),
                        memory_text(gpu ? tools::known(gpu->used_bytes) : std::nullopt),
                        memory_text(gpu ? gpu->total_bytes : device.total_bytes),
                        busy ? fmt::format("{:.0f}%", *busy * 100) : "-",
                        watts ? fmt::format("{:.0f} W", *watts) : "-", sessions,
                        sessions == 1 ? "" : "s", gpu ? quota_text(*gpu) : "");
  }
  return text;
}

// The columns of a session, or their titles.
std::string line_of(const std::array<std::string, 14>& columns) {
  constexpr std::array kWidths = {-20, 7, -10, 7, -6, -5, 7,
                                  7,   9, 8,   8, 8,  7};  // negative: left-aligned
  std::string line;
  for (size_t i = 0; i < kWidths.size(); ++i) {
    line += kWidths[i] < 0 ? fmt::format("{:<{}} ", columns[i], -kWidths[i])
                           : fmt::format("{:>{}} ", columns[i], kWidths[i]);
  }
  return line + " " + columns.back() + "\n";
}

}  // namespace

std::string top_of(const std::vector<Look>& before, const std::vector<Look>& now) {
  using wire::Counter;
  std::string text;
  std::vector<Row> rows;
  for (const Look& look : now) {
    text += server_lines(look);
    for (const Session& session : look.status.sessions)
      rows.push_back(row_of(before, look, session));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.rate(Counter::kLaunches) > b.rate(Counter::kLaunches);
  });
  text += "\n" + line_of({"SERVER", "WORKER", "USER", "PID", "GPU", "OVER", "MEMORY", "PEAK",
                          "LAUNCH/s", "GRAPH/s", "TO GPU/s", "FROM/s", "TIME", "PROGRAM"});
  for (const Row& row : rows) {
    const Session& session = *row.session;
    text += line_of(
        {cut(row.look->server, 20), std::to_string(session.worker_pid), cut(session.user, 10),
         std::to_string(session.client_pid),
         cut(fmt::format("{}", fmt::join(session.devices, ",")), 6), cut(session.medium, 5),
         memory_text(memory_of(*row.look, session)),
         memory_text(session.work[Counter::kPeakMemory]), scaled(row.rate(Counter::kLaunches)),
         scaled(row.rate(Counter::kGraphLaunches)), scaled(row.rate(Counter::kBytesToDevice), 1024),
         scaled(row.rate(Counter::kBytesToHost), 1024), fmt::format("{}s", session.seconds),
         session.host + ": " + session.program +
             (session.job.empty() ? "" : ", job " + session.job)});
  }
  return text;
}

}  // namespace rcuda::smi
