// Logging for all components. Lines go to stderr, or to the file or descriptor that the functions
// below set. They never go to stdout, which belongs to the application. Formatting is printf's, so
// including this header is cheap.
//
// Levels: error = an operation was lost; warn = degraded; info = once per session; debug = once per
// object; trace = once per call. The default shows warn and above.
// Any thread may log, also in a child of fork(). A line is written whole, with control characters
// replaced by '?'. A disabled level costs one relaxed load.
#pragma once

#include <atomic>
#include <string_view>

namespace rcuda {

enum class LogLevel : int { kTrace = 0, kDebug, kInfo, kWarn, kError, kOff };

namespace internal {
extern std::atomic<int> log_threshold;
void log_line(LogLevel level, const char* format, ...) __attribute__((format(printf, 2, 3)));
}  // namespace internal

inline bool log_enabled(LogLevel level) {
  return static_cast<int>(level) >= internal::log_threshold.load(std::memory_order_relaxed);
}

void set_log_level(LogLevel level);
// `name`: "trace", "debug", "info", "warn", "error" or "off". Returns false for any other name.
bool set_log_level(const char* name);
// The program's name in every line, after the time: "rcuda", "rcuda-server", "softgpu". The string
// is copied. This call makes later lines go to stderr, so call it before the functions below.
void set_log_name(const char* name);
// Sends lines to a file (appended) instead of stderr; false if it cannot be opened.
bool set_log_file(const char* path);
// Sends lines to an open descriptor. The caller owns the descriptor and keeps it open.
void set_log_descriptor(int descriptor);
// Sends lines to an open descriptor. Another process reads them and passes them to
// write_log_line_of(). Each line has its level and its text ("<W>text"). The caller owns the
// descriptor and keeps it open.
void set_log_relay(int descriptor);
// Writes one line of another process as a line of this log, with the time and destination of this
// log and the name of the other process. Replaces characters that are not printable. Takes the
// level from `line` (kInfo if it has no level). The end of a line that does not fit is cut off.
void write_log_line_of(const char* name, std::string_view line);

}  // namespace rcuda

#define RCUDA_LOG(level, ...)                                                         \
  do {                                                                                \
    if (::rcuda::log_enabled(level)) ::rcuda::internal::log_line(level, __VA_ARGS__); \
  } while (0)
#define RCUDA_TRACE(...) RCUDA_LOG(::rcuda::LogLevel::kTrace, __VA_ARGS__)
#define RCUDA_DEBUG(...) RCUDA_LOG(::rcuda::LogLevel::kDebug, __VA_ARGS__)
#define RCUDA_INFO(...) RCUDA_LOG(::rcuda::LogLevel::kInfo, __VA_ARGS__)
#define RCUDA_WARN(...) RCUDA_LOG(::rcuda::LogLevel::kWarn, __VA_ARGS__)
#define RCUDA_ERROR(...) RCUDA_LOG(::rcuda::LogLevel::kError, __VA_ARGS__)
