#include "client/trace/trace.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/opcodes.h"
#include "common/base/file_io.h"
#include "common/base/log.h"
#include "common/base/monotonic.h"
#include "common/base/mutex.h"
#include "common/base/start_thread.h"
#include "common/base/thread_object.h"
#include "common/base/unique_fd.h"
#include "common/base/units.h"

namespace rcuda::client::trace {

std::atomic<bool> internal::writing{false};

namespace {

constexpr auto kWriteInterval = std::chrono::milliseconds(100);
// Limit per thread and write interval: 56 MiB. Further records are dropped and counted.
constexpr size_t kMaxRecords = 1u << 20;
// Upper bound for the drift between the clocks of two machines that run NTP or PTP.
constexpr double kDriftPerNs = 100e-6;
// The timeline shows servers as processes, with process ids that no real process has.
constexpr uint32_t kFirstServerPid = 5'000'000;
constexpr uint32_t kExecutorTrack = 1;
constexpr size_t kMaxOpenCalls = 4096;
constexpr size_t kWriteBytes = 1u << 20;
constexpr const char* kPost = "post";
constexpr const char* kCall = "call";

struct Record {
  uint64_t begin_ns, end_ns;
  const char* name;      // null: a command
  const char* category;  // of commands: "post" or "call"
  uint64_t command;
  uint32_t server;
  int32_t result;
  uint16_t opcode;
};

struct ThreadLog {
  Mutex mutex;  // shared by the thread and the writer
  std::vector<Record> records RCUDA_GUARDED_BY(mutex);
  uint64_t dropped RCUDA_GUARDED_BY(mutex) = 0;
  bool introduced = false;  // used by the writer only
  uint32_t thread = 0;
  char name[16] = {};
};

// The difference between a server's clock and ours, measured by the best of the recent round trips.
struct ClockOffset {
  bool known = false;
  int64_t worker_minus_ours_ns = 0;
  double uncertainty_ns = 0;
  uint64_t at_ns = 0;

  void learn(const Record& call, const wire::TraceEvent& execution) {
    const uint64_t out = call.end_ns - call.begin_ns;
    const uint64_t inside = execution.end_ns - execution.begin_ns;
    if (inside > out) return;  // the worker answered before the execution ended
    const double uncertainty = static_cast<double>(out - inside) / 2;
    const double age = static_cast<double>(call.end_ns) - static_cast<double>(at_ns);
    if (known && uncertainty > uncertainty_ns + std::max(age, 0.0) * kDriftPerNs) return;
    known = true;
    uncertainty_ns = uncertainty;
    at_ns = call.end_ns;
    worker_minus_ours_ns = static_cast<int64_t>(execution.begin_ns / 2 + execution.end_ns / 2) -
                           static_cast<int64_t>(call.begin_ns / 2 + call.end_ns / 2);
  }
};

struct Server {
  std::string name;
  uint32_t worker_pid = 0;
  bool same_clock = false;
  ClockOffset clock;
  double worst_uncertainty_ns = 0;  // the largest uncertainty of a written event
  Mutex mutex;                      // also held while `reported` changes
  std::vector<wire::TraceEvent> events RCUDA_GUARDED_BY(mutex);
  std::atomic<uint64_t> reported{0};  // the latest command that the worker has reported
  // Used by the writer only:
  bool introduced = false;
  std::vector<wire::TraceEvent> unwritten;
  std::map<uint64_t, Record> calls;  // round trips that the worker has not reported, by command
  std::vector<std::pair<uint32_t, uint32_t>> streams;  // (context, stream) of each track from 2 on
  std::vector<uint64_t> track_ends;                    // by track: the end of its last slice
};

class Writer {
 public:
  Status open(const std::string& pattern);
  void run();
  void stop();
  void abandon() noexcept { (void)::close(file_.get()); }

  ThreadLog& log_of_this_thread();
  uint32_t add_server(const std::string& name, uint32_t worker_pid, bool same_clock);
  Server* server(uint32_t index) {
    MutexLock lock(mutex_);
    return index < servers_.size() ? servers_[index].get() : nullptr;
  }

 private:
  void write_all(bool last);
  void write_thread(ThreadLog& log);
  void write_server(uint32_t index, Server& server, bool last);
  void write_record(uint32_t thread, const Record& record);
  void write_execution(uint32_t pid, Server& server, const wire::TraceEvent& event);
  uint32_t track_of(uint32_t pid, Server& server, const wire::TraceEvent& event);
  void event(const char* format, ...) __attribute__((format(printf, 2, 3)));
  void flush();

  UniqueFd file_;
  uint32_t pid_ = 0;
  bool first_ = true;
  bool failed_ = false;
  uint64_t dropped_ = 0;
  std::string text_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::shared_ptr<ThreadLog>> logs_ RCUDA_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Server>> servers_ RCUDA_GUARDED_BY(mutex_);
  bool stopping_ RCUDA_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

Writer* writer = nullptr;  // set once, before `writing`; never deleted: late spans may use it

// Escapes text for a JSON string. A control character becomes a space.
std::string in_quotes(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '"' || c == '\\') safe += '\\';
    safe += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return safe;
}

// Nanoseconds as text in microseconds, the unit of the format.
struct Microseconds {
  explicit Microseconds(uint64_t ns) {
    std::snprintf(text, sizeof text, "%llu.%03u", static_cast<unsigned long long>(ns / 1000),
                  static_cast<unsigned>(ns % 1000));
  }
  char text[32];
};

Result<UniqueFd> open_locked(const std::string& path, bool* busy) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  if (!file) return Status::from_errno(errno, "RCUDA_TRACE: cannot write to " + path);
  *busy = ::flock(file.get(), LOCK_EX | LOCK_NB) != 0;
  return file;
}

Status Writer::open(const std::string& pattern) {
  pid_ = static_cast<uint32_t>(::getpid());
  const std::string id = std::to_string(pid_);
  std::string path = pattern;
  const size_t place = path.find("%p");
  if (place != std::string::npos) path.replace(place, 2, id);
  bool busy = false;
  Result<UniqueFd> file = open_locked(path, &busy);
  if (file.ok() && busy && place == std::string::npos) {
    const size_t name = path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/');
    const size_t suffix = path.find_last_of('.');
    path.insert(suffix == std::string::npos || suffix < name ? path.size() : suffix, "." + id);
    file = open_locked(path, &busy);
  }
  if (!file.ok()) return file.status();
  file_ = std::move(file).value();
  // A device or a pipe cannot be truncated and need not be.
  struct stat about {};
  if (::fstat(file_.get(), &about) == 0 && S_ISREG(about.st_mode) &&
      ::ftruncate(file_.get(), 0) != 0) {
    return Status::from_errno(errno, "RCUDA_TRACE: cannot empty " + path);
  }
  text_ = "[";
  event(R"({"name":"process_name","ph":"M","pid":%u,"args":{"name":"%s"}})", pid_,
        in_quotes(program_invocation_short_name).c_str());
  flush();
  Status started = start_thread(&thread_, [this] { run(); });
  return started.ok() ? started : std::move(started).with_context("RCUDA_TRACE");
}

void Writer::run() {
  pthread_setname_np(pthread_self(), "rcuda-trace");
  MutexLock lock(mutex_);
  while (!stopping_) {
    changed_.wait_for(lock, kWriteInterval);
    lock.unlock();
    write_all(false);
    lock.lock();
  }
}

void Writer::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
  write_all(true);
  MutexLock lock(mutex_);
  for (uint32_t i = 0; i < servers_.size(); ++i) {
    const Server& server = *servers_[i];
    const uint32_t pid = kFirstServerPid + i;
    if (server.same_clock) {
      event(R"({"name":"process_labels","ph":"M","pid":%u,"args":{"labels":"same clock"}})", pid);
    } else if (server.clock.known) {
      event(R"({"name":"process_labels","ph":"M","pid":%u,)"
            R"("args":{"labels":"clock known to %s","clock_uncertainty_us":%.3f}})",
            pid, microseconds_text(server.worst_uncertainty_ns / 1000).c_str(),
            server.worst_uncertainty_ns / 1000);
    }
  }
  if (dropped_ != 0) {
    RCUDA_WARN(
        "RCUDA_TRACE: %llu calls are missing in the file: the program made calls faster than "
        "they could be written",
        static_cast<unsigned long long>(dropped_));
  }
  text_ += "\n]\n";
  flush();
  file_.reset();
}

ThreadLog& Writer::log_of_this_thread() {
  // Two owners: the thread until it ends, and logs_ until the log of an ended thread is written.
  auto& log = of_this_thread<std::shared_ptr<ThreadLog>>();
  if (!log) {
    log = std::make_shared<ThreadLog>();
    log->thread = static_cast<uint32_t>(::gettid());
    pthread_getname_np(pthread_self(), log->name, sizeof log->name);
    MutexLock lock(mutex_);
    logs_.push_back(log);
  }
  return *log;
}

uint32_t Writer::add_server(const std::string& name, uint32_t worker_pid, bool same_clock) {
  auto server = std::make_unique<Server>();
  server->name = name;
  server->worker_pid = worker_pid;
  server->same_clock = same_clock;
  MutexLock lock(mutex_);
  servers_.push_back(std::move(server));
  return static_cast<uint32_t>(servers_.size() - 1);
}

void Writer::write_all(bool last) {
  std::vector<std::shared_ptr<ThreadLog>> logs;
  size_t servers = 0;
  {
    MutexLock lock(mutex_);
    // If only logs_ and logs refer to a log, its thread has ended. This call writes the log for the
    // last time.
    for (auto& log : logs_) logs.push_back(log);
    std::erase_if(logs_, [](const auto& log) { return log.use_count() == 2; });
    servers = servers_.size();
  }
  for (const auto& log : logs) write_thread(*log);
  for (uint32_t i = 0; i < servers; ++i) write_server(i, *server(i), last);
  flush();
}

void Writer::write_thread(ThreadLog& log) {
  std::vector<Record> records;
  {
    MutexLock lock(log.mutex);
    records.swap(log.records);
    dropped_ += std::exchange(log.dropped, 0);
  }
  if (records.empty()) return;
  if (!log.introduced) {
    log.introduced = true;
    event(R"({"name":"thread_name","ph":"M","pid":%u,"tid":%u,"args":{"name":"%s"}})", pid_,
          log.thread, in_quotes(log.name).c_str());
  }
  for (const Record& record : records) write_record(log.thread, record);
}

void Writer::write_record(uint32_t thread, const Record& record) {
  const Microseconds begin(record.begin_ns), duration(record.end_ns - record.begin_ns);
  if (record.name) {
    event(R"({"name":"%s","cat":"%s","ph":"X","ts":%s,"dur":%s,"pid":%u,"tid":%u,)"
          R"("args":{"result":%d}})",
          record.name, record.category, begin.text, duration.text, pid_, thread, record.result);
    return;
  }
  event(R"({"name":"%s %s","cat":"%s","ph":"X","ts":%s,"dur":%s,"pid":%u,"tid":%u,)"
        R"("args":{"server":%u,"command":%llu}})",
        record.category, api::opcode_name(record.opcode), record.category, begin.text,
        duration.text, pid_, thread, record.server,
        static_cast<unsigned long long>(record.command));
  event(R"({"name":"command","cat":"flow","ph":"s","id":"%u.%u.%llu","ts":%s,"pid":%u,"tid":%u})",
        pid_, record.server, static_cast<unsigned long long>(record.command), begin.text, pid_,
        thread);
  Server& server = *this->server(record.server);
  if (record.category == kCall && !server.same_clock) {
    server.calls.emplace(record.command, record);
    if (server.calls.size() > kMaxOpenCalls) server.calls.erase(server.calls.begin());
  }
}

void Writer::write_server(uint32_t index, Server& server, bool last) {
  const uint32_t pid = kFirstServerPid + index;
  if (!server.introduced) {
    server.introduced = true;
    event(R"({"name":"process_name","ph":"M","pid":%u,"args":{"name":"server %s, worker %u"}})",
          pid, in_quotes(server.name).c_str(), server.worker_pid);
    event(R"({"name":"process_sort_index","ph":"M","pid":%u,"args":{"sort_index":%u}})", pid, pid);
    event(R"({"name":"thread_name","ph":"M","pid":%u,"tid":%u,"args":{"name":"executor"}})", pid,
          kExecutorTrack);
  }
  const size_t known = server.unwritten.size();
  {
    MutexLock lock(server.mutex);
    server.unwritten.insert(server.unwritten.end(), server.events.begin(), server.events.end());
    server.events.clear();
  }
  for (size_t i = known; i < server.unwritten.size(); ++i) {
    const wire::TraceEvent& event = server.unwritten[i];
    if (event.flags & wire::TraceEvent::kOnDevice) continue;
    if (auto call = server.calls.find(event.command); call != server.calls.end()) {
      server.clock.learn(call->second, event);
      server.calls.erase(call);
    }
  }
  // Keep the events until the clock's offset is known.
  if (!server.same_clock && !server.clock.known && !last) return;
  if (!server.unwritten.empty()) {
    server.worst_uncertainty_ns =
        std::max(server.worst_uncertainty_ns, server.clock.uncertainty_ns);
  }
  for (const wire::TraceEvent& event : server.unwritten) write_execution(pid, server, event);
  server.unwritten.clear();
}

uint32_t Writer::track_of(uint32_t pid, Server& server, const wire::TraceEvent& event) {
  if (!(event.flags & wire::TraceEvent::kOnDevice)) return kExecutorTrack;
  const std::pair stream(event.context, event.stream);
  const auto found = std::find(server.streams.begin(), server.streams.end(), stream);
  const auto track = kExecutorTrack + 1 + static_cast<uint32_t>(found - server.streams.begin());
  if (found != server.streams.end()) return track;
  server.streams.push_back(stream);
  const std::string name =
      event.stream == 0 ? "default stream" : "stream " + std::to_string(event.stream);
  this->event(R"({"name":"thread_name","ph":"M","pid":%u,"tid":%u,)"
              R"("args":{"name":"%s of context %u"}})",
              pid, track, name.c_str(), event.context);
  return track;
}

void Writer::write_execution(uint32_t pid, Server& server, const wire::TraceEvent& event) {
  const uint32_t track = track_of(pid, server, event);
  if (server.track_ends.size() <= track) server.track_ends.resize(track + 1);
  // Slices of one track must not overlap, even if a better estimate of the clock moves a slice.
  const auto ours = [&](uint64_t worker_ns) {
    return std::max(worker_ns - static_cast<uint64_t>(server.clock.worker_minus_ours_ns),
                    server.track_ends[track]);
  };
  const uint64_t begin_ns = ours(event.begin_ns);
  const uint64_t end_ns = std::max(ours(event.end_ns), begin_ns);
  server.track_ends[track] = end_ns;
  const Microseconds begin(begin_ns), duration(end_ns - begin_ns);
  const bool on_device = event.flags & wire::TraceEvent::kOnDevice;
  this->event(R"({"name":"%s","cat":"%s","ph":"X","ts":%s,"dur":%s,"pid":%u,"tid":%u,)"
              R"("args":{"command":%llu,"thread":%u}})",
              api::opcode_name(event.opcode), on_device ? "device" : "executor", begin.text,
              duration.text, pid, track, static_cast<unsigned long long>(event.command),
              event.thread);
  this->event(R"({"name":"command","cat":"flow","ph":"%c","bp":"e","id":"%u.%u.%llu","ts":%s,)"
              R"("pid":%u,"tid":%u})",
              on_device ? 't' : 'f', pid_, pid - kFirstServerPid,
              static_cast<unsigned long long>(event.command), begin.text, pid, track);
}

void Writer::event(const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  if (length < 0 || static_cast<size_t>(length) >= sizeof line) return;  // no name is that long
  text_ += first_ ? "\n" : ",\n";
  first_ = false;
  text_.append(line, static_cast<size_t>(length));
  if (text_.size() >= kWriteBytes) flush();
}

void Writer::flush() {
  if (!failed_ && !rcuda::write_all(file_.get(), std::as_bytes(std::span(text_)))) {
    failed_ = true;
    RCUDA_ERROR("RCUDA_TRACE: cannot write to the file, the rest of the timeline is lost: %s",
                std::strerror(errno));
  }
  text_.clear();
}

void record(const Record& record) {
  ThreadLog& log = writer->log_of_this_thread();
  MutexLock lock(log.mutex);
  if (log.records.size() < kMaxRecords) {
    log.records.push_back(record);
  } else {
    ++log.dropped;
  }
}

}  // namespace

Status start(const std::string& path) {
  auto opened = std::make_unique<Writer>();
  RCUDA_RETURN_IF_ERROR(opened->open(path));
  writer = opened.release();
  internal::writing.store(true, std::memory_order_release);
  return {};
}

void finish() {
  if (!internal::writing.exchange(false)) return;
  writer->stop();
}

void abandon() noexcept {
  if (internal::writing.exchange(false)) writer->abandon();
}

uint32_t add_server(const std::string& name, uint32_t worker_pid, bool same_clock) {
  return writer->add_server(name, worker_pid, same_clock);
}

void server_events(uint32_t index, std::span<const wire::TraceEvent> events) {
  Server* server = on() ? writer->server(index) : nullptr;
  if (!server || events.empty()) return;
  MutexLock lock(server->mutex);
  server->events.insert(server->events.end(), events.begin(), events.end());
  for (const wire::TraceEvent& event : events) {
    if (event.flags & wire::TraceEvent::kOnDevice) continue;
    // Keep the maximum, because a postponed command is reported after later commands.
    server->reported = std::max(server->reported.load(), event.command);
  }
}

bool reported(uint32_t index, uint64_t command) {
  const Server* server = on() ? writer->server(index) : nullptr;
  return !server || server->reported.load() >= command;
}

Span::Span(const char* name, const char* category)
    : name_(name), category_(category), begin_ns_(on() ? monotonic_ns() : 0) {}

Span::~Span() {
  if (begin_ns_ == 0 || !on()) return;
  record({begin_ns_, monotonic_ns(), name_, category_, 0, 0, static_cast<int32_t>(result_), 0});
}

CommandSpan::CommandSpan(uint32_t server, uint16_t opcode, bool posted)
    : server_(server), opcode_(opcode), posted_(posted), begin_ns_(on() ? monotonic_ns() : 0) {}

CommandSpan::~CommandSpan() {
  if (begin_ns_ == 0 || command_ == 0 || !on()) return;
  record(
      {begin_ns_, monotonic_ns(), nullptr, posted_ ? kPost : kCall, command_, server_, 0, opcode_});
}

}  // namespace rcuda::client::trace
