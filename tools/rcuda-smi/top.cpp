// The screen of rcuda-smi top.
#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "common/base/units.h"
#include "tools/rcuda-smi/figures.h"
#include "tools/rcuda-smi/look.h"

namespace rcuda::smi {
namespace {

using Session = wire::ServerStatus::Session;

// Returns a short text of a number of launches: "1.2M" for 1234567.
std::string scaled(double value) {
  static constexpr const char* kUnits[] = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f}{}", value, unit == 0 || value >= 100 ? 0 : 1, kUnits[unit]);
}

std::string byte_rate(double bytes) { return bytes_text(static_cast<uint64_t>(bytes)); }

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
    text += "  " + device_line(look, device);
  }
  return text;
}

using Columns = std::vector<std::string>;

// Returns the rows as text, with columns as wide as their longest cell. The first row has the
// titles.
std::string table_of(const std::vector<Columns>& rows) {
  constexpr std::string_view kLeftAligned = "l.l.ll";  // the other columns have numbers
  std::vector<size_t> widths;
  for (const Columns& row : rows) {
    widths.resize(row.size());
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Columns& row : rows) {
    for (size_t i = 0; i + 1 < row.size(); ++i) {
      const bool is_left = i < kLeftAligned.size() && kLeftAligned[i] == 'l';
      text += fmt::format(fmt::runtime(is_left ? "{:<{}}  " : "{:>{}}  "), row[i], widths[i]);
    }
    text += row.back() + "\n";
  }
  return text;
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
  std::vector<Columns> table = {{"SERVER", "WORKER", "USER", "PID", "GPU", "OVER", "MEMORY", "PEAK",
                                 "LAUNCH/s", "GRAPH/s", "TO GPU/s", "FROM/s", "TIME", "PROGRAM"}};
  for (const Row& row : rows) {
    const Session& session = *row.session;
    table.push_back(
        {cut(row.look->server, 20), std::to_string(session.worker_pid), cut(session.user, 10),
         std::to_string(session.client_pid),
         cut(fmt::format("{}", fmt::join(session.devices, ",")), 6), cut(session.medium, 5),
         memory_text(memory_of(*row.look, session)),
         memory_text(session.work[Counter::kPeakMemory]), scaled(row.rate(Counter::kLaunches)),
         scaled(row.rate(Counter::kGraphLaunches)), byte_rate(row.rate(Counter::kBytesToDevice)),
         byte_rate(row.rate(Counter::kBytesToHost)), age_text(session.seconds),
         session.host + ": " + session.program +
             (session.job.empty() ? "" : ", job " + session.job) +
             (session.park.empty() ? "" : ", " + park_text(session))});
  }
  return text + "\n" + table_of(table);
}

}  // namespace rcuda::smi
