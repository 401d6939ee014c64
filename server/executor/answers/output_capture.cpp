#include "server/executor/answers/output_capture.h"

#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/start_thread.h"

namespace rcuda::server {

Result<std::unique_ptr<OutputCapture>> OutputCapture::start() {
  std::unique_ptr<OutputCapture> capture(new OutputCapture);
  std::fflush(stdout);
  for (int i = 0; i < 2; ++i) {
    Stream& stream = capture->streams_[i];
    const int descriptor = i + 1;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      return Status::from_errno(errno, "making a pipe for kernel output");
    stream.read_end.reset(ends[0]);
    UniqueFd write_end(ends[1]);
    ::fcntl(stream.read_end.get(), F_SETFL, O_NONBLOCK);
    ::fcntl(stream.read_end.get(), F_SETPIPE_SZ, 1 << 20);
    stream.before.reset(::fcntl(descriptor, F_DUPFD_CLOEXEC, 3));
    if (!stream.before) return Status::from_errno(errno, "duplicating the worker's output");
    if (::dup2(write_end.get(), descriptor) < 0) {
      return Status::from_errno(errno, "redirecting the worker's output to a pipe");
    }
    stream.descriptor = descriptor;
  }
  // stdio buffers whole blocks for a pipe. The text must be in the pipe when the driver returns.
  std::setvbuf(stdout, nullptr, _IONBF, 0);
  capture->stop_event_.reset(::eventfd(0, EFD_CLOEXEC));
  if (!capture->stop_event_) {
    return Status::from_errno(errno, "making an eventfd for kernel output");
  }
  RCUDA_RETURN_IF_ERROR(start_thread(&capture->thread_, [raw = capture.get()] { raw->run(); }));
  return capture;
}

OutputCapture::~OutputCapture() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] ssize_t written = ::write(stop_event_.get(), &one, sizeof one);
    thread_.join();
  }
  drain();
  for (Stream& stream : streams_) {
    if (stream.descriptor >= 0 && stream.before) ::dup2(stream.before.get(), stream.descriptor);
  }
}

void OutputCapture::set_sink(EventSink* sink) {
  MutexLock lock(mutex_);
  sink_ = sink;
}

void OutputCapture::drain() {
  MutexLock lock(mutex_);
  drain_locked();
}

void OutputCapture::drain_locked() {
  char text[16 << 10];
  for (Stream& stream : streams_) {
    if (!stream.read_end) continue;
    for (;;) {
      const ssize_t got = ::read(stream.read_end.get(), text, sizeof text);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      const bool published =
          sink_ && sink_->output(stream.descriptor == 2, {text, static_cast<size_t>(got)}).ok();
      if (!published && stream.before) {
        [[maybe_unused]] ssize_t written =
            ::write(stream.before.get(), text, static_cast<size_t>(got));
      }
    }
  }
}

void OutputCapture::run() {
  pthread_setname_np(pthread_self(), "rcuda-output");
  for (;;) {
    pollfd items[3] = {{streams_[0].read_end.get(), POLLIN, 0},
                       {streams_[1].read_end.get(), POLLIN, 0},
                       {stop_event_.get(), POLLIN, 0}};
    if (::poll(items, 3, -1) < 0 && errno != EINTR) return;
    if (items[2].revents) return;
    MutexLock lock(mutex_);
    drain_locked();
  }
}

}  // namespace rcuda::server
