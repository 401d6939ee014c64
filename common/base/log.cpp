#include "common/base/log.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include <fcntl.h>
#include <pthread.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "common/base/cancellation_off.h"
#include "common/base/log_forward.h"
#include "common/base/mutex.h"
#include "common/base/printable.h"
#include "common/base/unique_fd.h"

namespace rcuda {
namespace {

// Times are in UTC, as in the audit log and in rcuda's other files.
constexpr auto kTimes = spdlog::pattern_time_type::utc;
constexpr const char* kLinePattern = "%Y-%m-%dT%H:%M:%S.%eZ %n[%P] %l: %v";
// The pattern for a line of another process: %n is that process's name, which includes its process
// id.
constexpr const char* kOthersPattern = "%Y-%m-%dT%H:%M:%S.%eZ %n %l: %v";
// "<W>text": the level's letter, as spdlog writes it, and the text.
constexpr const char* kRelayedPattern = "<%L>%v";
constexpr std::string_view kRelayedLetters = "TDIWE";
constexpr const char* kLevelNames[] = {"trace", "debug", "info", "warn", "error", "off"};
constexpr spdlog::level::level_enum kSpdlogLevels[] = {spdlog::level::trace, spdlog::level::debug,
                                                       spdlog::level::info,  spdlog::level::warn,
                                                       spdlog::level::err,   spdlog::level::off};

// Never destroyed: threads and atexit handlers of the application may log to the very end.
struct Logger {
  Mutex mutex;
  std::string name RCUDA_GUARDED_BY(mutex) = "rcuda";
  std::shared_ptr<spdlog::logger> sink RCUDA_GUARDED_BY(mutex);
};
// A child of fork() has only the thread that forked, so no other thread may hold the lock during a
// fork.
Logger& logger() {
  static Logger* const instance = [] {
    auto* made = new Logger;
    ::pthread_atfork([]() RCUDA_ACQUIRE(logger().mutex) { logger().mutex.lock(); },
                     []() RCUDA_RELEASE(logger().mutex) { logger().mutex.unlock(); },
                     []() RCUDA_RELEASE(logger().mutex) { logger().mutex.unlock(); });
    return made;
  }();
  return *instance;
}
// Created when the program or library is loaded: before there are threads, and before fork()
// handlers that take other locks are registered. The handlers that run before a fork run in reverse
// order of registration, so the other locks are taken before this lock.
[[maybe_unused]] const Logger& made_early = logger();

// Writes lines to a descriptor, one write() each. Logger::mutex serialises the writers.
class DescriptorSink : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit DescriptorSink(int descriptor) : descriptor_(descriptor) {}
  explicit DescriptorSink(UniqueFd file) : descriptor_(file.get()), file_(std::move(file)) {}

  void write(const spdlog::memory_buf_t& line) {
    [[maybe_unused]] ssize_t written = ::write(descriptor_, line.data(), line.size());
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    write(line);
  }
  void flush_() override {}

  const int descriptor_;
  const UniqueFd file_;  // the descriptor, if the sink owns it
};

void use_sink_locked(Logger& log, std::shared_ptr<DescriptorSink> sink, const char* pattern)
    RCUDA_REQUIRES(log.mutex) {
  log.sink = std::make_shared<spdlog::logger>(log.name, std::move(sink));
  log.sink->set_level(spdlog::level::trace);
  log.sink->set_pattern(pattern, kTimes);
}

// The sink is created at first use, so a process that never logs has no sink. The sink does not use
// the stream stderr: a thread may hold that stream's lock while it waits for the logger's lock.
spdlog::logger& sink_locked(Logger& log) RCUDA_REQUIRES(log.mutex) {
  if (!log.sink)
    use_sink_locked(log, std::make_shared<DescriptorSink>(STDERR_FILENO), kLinePattern);
  return *log.sink;
}

}  // namespace

namespace internal {

std::atomic<int> log_threshold{static_cast<int>(LogLevel::kWarn)};
static std::atomic<LogWriter> log_writer{nullptr};

void log_line(LogLevel level, const char* format, ...) {
  char text[4096];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  // Lines quote text from peers. The text must not look like several lines or control a terminal.
  make_printable({text, std::strlen(text)});
  if (const LogWriter writer = log_writer.load(std::memory_order_acquire); writer != nullptr) {
    writer(level, text);
  } else {
    write_log_line(level, text);
  }
}

}  // namespace internal

void write_log_line(LogLevel level, const char* text) {
  const CancellationOff off;
  Logger& log = logger();
  MutexLock lock(log.mutex);
  spdlog::logger& sink = sink_locked(log);
  sink.log(kSpdlogLevels[static_cast<int>(level)], spdlog::string_view_t(text));
  sink.flush();
}

void forward_log(LogWriter writer) {
  internal::log_writer.store(writer, std::memory_order_release);
}

void set_log_level(LogLevel level) {
  internal::log_threshold.store(static_cast<int>(level), std::memory_order_relaxed);
}

bool set_log_level(const char* name) {
  for (int i = 0; i <= static_cast<int>(LogLevel::kOff); ++i) {
    if (std::strcmp(name, kLevelNames[i]) == 0) {
      set_log_level(static_cast<LogLevel>(i));
      return true;
    }
  }
  return false;
}

void set_log_name(const char* name) {
  Logger& log = logger();
  MutexLock lock(log.mutex);
  log.name = name;
  log.sink.reset();
}

bool set_log_file(const char* path) {
  UniqueFd file(::open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666));
  if (!file) return false;
  Logger& log = logger();
  MutexLock lock(log.mutex);
  use_sink_locked(log, std::make_shared<DescriptorSink>(std::move(file)), kLinePattern);
  return true;
}

void set_log_descriptor(int descriptor) {
  Logger& log = logger();
  MutexLock lock(log.mutex);
  use_sink_locked(log, std::make_shared<DescriptorSink>(descriptor), kLinePattern);
}

void set_log_relay(int descriptor) {
  Logger& log = logger();
  MutexLock lock(log.mutex);
  use_sink_locked(log, std::make_shared<DescriptorSink>(descriptor), kRelayedPattern);
}

void write_log_line_of(const char* name, std::string_view line) {
  LogLevel level = LogLevel::kInfo;
  if (line.size() >= 3 && line[0] == '<' && line[2] == '>') {
    const size_t letter = kRelayedLetters.find(line[1]);
    if (letter != std::string_view::npos) {
      level = static_cast<LogLevel>(letter);
      line.remove_prefix(3);
    }
  }
  char text[4096];
  const size_t bytes = std::min(line.size(), sizeof text - 1);
  // A zero byte would end the text.
  std::replace_copy(line.begin(), line.begin() + static_cast<ptrdiff_t>(bytes), text, '\0', '?');
  text[bytes] = '\0';
  make_printable({text, bytes});
  const CancellationOff off;
  Logger& log = logger();
  MutexLock lock(log.mutex);
  spdlog::memory_buf_t whole;
  spdlog::pattern_formatter(kOthersPattern, kTimes)
      .format({name, kSpdlogLevels[static_cast<int>(level)], text}, whole);
  static_cast<DescriptorSink&>(*sink_locked(log).sinks().front()).write(whole);
}

}  // namespace rcuda
