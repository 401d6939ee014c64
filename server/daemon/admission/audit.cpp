#include "server/daemon/admission/audit.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "common/base/date_text.h"
#include "common/base/json_text.h"
#include "common/base/list_text.h"
#include "common/base/log.h"
#include "common/base/passing_error.h"
#include "server/identity/token_store.h"

namespace rcuda::server {
namespace {

// A line of the audit: a JSON object. add() appends a member.
class Line {
 public:
  explicit Line(const char* event) {
    text_ = "{\"time\":" + json_text(date_text(std::time(nullptr)));
    add("event", event);
  }
  void add(const char* name, std::string_view value) { raw(name, json_text(value)); }
  void add(const char* name, uint64_t value) { raw(name, std::to_string(value)); }
  void raw(const char* name, const std::string& json) {
    text_ += ",\"" + std::string(name) + "\":" + json;
  }
  void add(const Identity& identity) {
    add("user", identity.user);
    if (identity.uid) add("uid", uint64_t{*identity.uid});
    add("method", identity.method);
    if (!identity.lease.empty()) add("lease", identity.lease);
    if (!identity.job.empty()) add("job", identity.job);
  }
  void add_with_origin(const Identity& identity) {
    add(identity);
    add("from", identity.from);
  }
  void add_devices(const std::vector<uint32_t>& devices) {
    raw("devices", "[" + comma_list(devices) + "]");
  }
  std::string take() { return std::move(text_) + "}\n"; }

 private:
  std::string text_;
};

void add_limit(std::string* json, const char* name, uint64_t value) {
  if (value != 0) *json += ",\"" + std::string(name) + "\":" + std::to_string(value);
}

uint64_t seconds_of(std::chrono::nanoseconds time) {
  return static_cast<uint64_t>(std::chrono::ceil<std::chrono::seconds>(time).count());
}

// Returns a JSON array: one object for each allowance, and one for the session's other limits.
std::string quota_json(const std::vector<Allowance>& allowances, const SessionLimits& limits) {
  std::string all;
  for (const Allowance& allowance : allowances) {
    all += (all.empty() ? "{\"of\":" : ",{\"of\":") + json_text(allowance.of);
    add_limit(&all, "device_memory", allowance.device_memory);
    add_limit(&all, "host_memory", allowance.host_memory);
    add_limit(&all, "bandwidth", allowance.bandwidth);
    all += "}";
  }
  std::string own;
  add_limit(&own, "session_seconds", seconds_of(limits.session_time));
  add_limit(&own, "idle_seconds", seconds_of(limits.idle_time));
  if (limits.priorities) own += ",\"priorities\":" + std::to_string(*limits.priorities);
  add_limit(&own, "sm_percent", limits.sm_percent);
  add_limit(&own, "priority", limits.priority);
  if (!own.empty()) all += (all.empty() ? "{" : ",{") + own.substr(1) + "}";
  return "[" + all + "]";
}

Line session_line(const char* event, const AuditedSession& audited) {
  const wire::ServerStatus::Session& session = audited.session;
  Line line(event);
  line.add_with_origin(audited.identity);
  line.raw("claims", "{\"user\":" + json_text(session.user) + ",\"host\":" +
                         json_text(session.host) + ",\"program\":" + json_text(session.program) +
                         ",\"pid\":" + std::to_string(session.client_pid) + "}");
  line.add("worker", uint64_t{session.worker_pid});
  line.add_devices(session.devices);
  line.add("medium", session.medium);
  line.raw("quota", quota_json(audited.allowances, audited.limits));
  return line;
}

// The code depends on errno: kUnavailable if the problem may be temporary.
Status unusable(const std::string& path) {
  return Status(may_pass(errno) ? Code::kUnavailable : Code::kInvalidArgument,
                "RCUDA_SERVER_AUDIT: cannot write to " + path + ": " + std::strerror(errno));
}

}  // namespace

Status Audit::open(const std::string& path) {
  UniqueFd file;
  if (!path.empty()) {
    file.reset(path == "-" ? ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)
                           : ::open(path.c_str(),
                                    O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0640));
    if (!file) return unusable(path);
  }
  file_ = std::move(file);
  return {};
}

Status Audit::check(const std::string& path) {
  if (path.empty() || path == "-") return {};
  if (UniqueFd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY))) return {};
  if (errno != ENOENT) return unusable(path);
  const size_t slash = path.rfind('/');
  const std::string folder = slash == path.npos ? "." : path.substr(0, slash + 1);
  return ::access(folder.c_str(), W_OK | X_OK) == 0 ? Status() : unusable(path);
}

void Audit::refused(const std::string& from, const std::optional<Identity>& identity,
                    std::string_view why) {
  Line line("refused");
  line.add("from", from);
  if (identity) line.add(*identity);
  line.add("why", why);
  write(line.take());
}

void Audit::began(const AuditedSession& session) { write(session_line("begin", session).take()); }

void Audit::ended(const AuditedSession& ended, const std::optional<SessionTotals>& totals,
                  std::string_view outcome) {
  Line line = session_line("session", ended);
  line.add("seconds", ended.session.seconds);
  if (ended.session.losses != 0) line.add("losses", uint64_t{ended.session.losses});
  const wire::Work& work = totals ? totals->work : ended.session.work;
  for (size_t i = 0; i < wire::kWorkNames.size(); ++i) {
    // Counters of copies to other servers are left out if they are 0, as most of them are.
    const bool rare = i >= static_cast<size_t>(wire::Counter::kPeerCopies);
    if (rare && work.counts[i] == 0) continue;
    line.add(wire::kWorkNames[i], work.counts[i]);
  }
  line.add("end", outcome);
  write(line.take());
}

void Audit::lease(std::string_view what, const Lease& lease, const std::optional<Identity>& by) {
  Line line("lease");
  line.add("what", what);
  line.add("lease", lease.id);
  if (!lease.job.empty()) line.add("job", lease.job);
  if (!lease.user.empty()) line.add("for", lease.user);
  line.add_devices(lease.devices);
  line.raw("exclusive", lease.exclusive ? "true" : "false");
  if (lease.oversubscribes) line.raw("oversubscribed", "true");
  if (lease.until) line.add("until", format_time(*lease.until));
  if (by) line.add_with_origin(*by);
  write(line.take());
}

void Audit::control(std::string_view what, const std::optional<Identity>& by,
                    std::optional<uint32_t> worker) {
  Line line("control");
  line.add("what", what);
  if (worker) line.add("worker", uint64_t{*worker});
  if (by) line.add_with_origin(*by);
  write(line.take());
}

// One write, so that lines of two servers that share a file do not mix.
void Audit::write(std::string line) {
  if (!file_) return;
  const ssize_t written = ::write(file_.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) {
    failed_ = false;
  } else if (!std::exchange(failed_, true)) {
    RCUDA_ERROR("the audit is incomplete: cannot write to the file of RCUDA_SERVER_AUDIT: %s",
                written < 0 ? std::strerror(errno) : "only a part of a line was written");
  }
}

}  // namespace rcuda::server
