#include "server/daemon/pool/worker_log.h"

#include <cerrno>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/units.h"

namespace rcuda::server {
namespace {

// A longer line is written in pieces.
constexpr size_t kMostLineBytes = 4000;
constexpr int kReadsAtOnce = 16;
constexpr size_t kReadBytes = 4096;

size_t most_lines() {
  return log_enabled(LogLevel::kDebug) ? WorkerLog::kMostDebugLines : WorkerLog::kMostLines;
}

}  // namespace

Status WorkerLog::open(UniqueFd* for_worker) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return Status::from_errno(errno, "making a pipe for the log of a worker");
  }
  pipe_.reset(ends[0]);
  for_worker->reset(ends[1]);
  return {};
}

int WorkerLog::descriptor(Clock::time_point now) const {
  return now < resumes_at() && resumes_at() != Clock::time_point::max() ? -1 : pipe_.get();
}

WorkerLog::Clock::time_point WorkerLog::resumes_at() const {
  return lines_ < most_lines() ? Clock::time_point::max() : interval_begin_ + kInterval;
}

void WorkerLog::relay(Clock::time_point now) {
  for (int i = 0; i < kReadsAtOnce; ++i) {
    if (!read_some(now)) return;
  }
}

void WorkerLog::finish(Clock::time_point now) {
  // One relay() reads all that a pipe can hold, but at most most_lines(). finish() does not wait
  // for the end of the pipe, because a process that the worker has left behind may go on writing.
  lines_ = 0;  // the last lines may say why the worker has ended
  interval_begin_ = now;
  relay(now);
  if (!partial_.empty()) write(partial_, now);
  pipe_.reset();
}

// Returns whether there may be more to read.
bool WorkerLog::read_some(Clock::time_point now) {
  if (!pipe_ || descriptor(now) < 0) return false;
  char bytes[kReadBytes];
  const ssize_t got = ::read(pipe_.get(), bytes, sizeof bytes);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return errno == EINTR;
  if (got <= 0) {
    pipe_.reset();  // no process can write to it any more
    return false;
  }
  std::string_view rest(bytes, static_cast<size_t>(got));
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    partial_.append(rest.substr(0, end));
    const bool whole = end < rest.size();
    rest.remove_prefix(whole ? end + 1 : end);
    if (whole || partial_.size() >= kMostLineBytes) {
      write(partial_, now);
      partial_.clear();
    }
  }
  return true;
}

void WorkerLog::write(std::string_view line, Clock::time_point now) {
  if (now >= interval_begin_ + kInterval) {
    interval_begin_ = now;
    lines_ = 0;
  }
  // Lines of one read may exceed the bound. The pipe no longer has them, so they are written.
  write_log_line_of(name_.c_str(), line);
  if (++lines_ != most_lines() || warned_) return;
  warned_ = true;
  RCUDA_WARN("%s has written %zu lines within %s: its further lines are delayed or lost",
             name_.c_str(), lines_, time_text(kInterval).c_str());
}

}  // namespace rcuda::server
