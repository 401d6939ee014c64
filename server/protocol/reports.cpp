#include "server/protocol/reports.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include <poll.h>
#include <unistd.h>

namespace rcuda::server {
namespace {

constexpr size_t kBodyBytes = kReportBytes - sizeof(uint32_t);

struct Frame {
  uint32_t bytes;  // of the message, in this frame and all further frames
  std::byte body[kBodyBytes];
};
static_assert(sizeof(Frame) == kReportBytes);

Status write_frame(int pipe, const Frame& frame, Deadline deadline) {
  for (;;) {
    const ssize_t written = ::write(pipe, &frame, sizeof frame);
    if (written == static_cast<ssize_t>(sizeof frame)) return {};
    if (written >= 0) return {Code::kInternal, "a report to the daemon was cut short"};
    if (errno == EPIPE) return {Code::kUnavailable, "the daemon has ended"};
    if (errno != EAGAIN && errno != EINTR)
      return Status::from_errno(errno, "writing a report to the daemon");
    pollfd item{pipe, POLLOUT, 0};
    if (errno == EAGAIN && ::poll(&item, 1, poll_timeout_ms(deadline)) == 0) {
      return {Code::kTimeout, "the daemon does not read the worker's reports"};
    }
  }
}

}  // namespace

Status send_report(int pipe, const ToDaemon& message, Deadline deadline) {
  const std::vector<std::byte> bytes = encode_message(message);
  for (size_t sent = 0; sent < bytes.size();) {
    const size_t left = bytes.size() - sent;
    Frame frame{static_cast<uint32_t>(left), {}};
    const size_t now = std::min(left, kBodyBytes);
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(sent), now, frame.body);
    RCUDA_RETURN_IF_ERROR(write_frame(pipe, frame, deadline));
    sent += now;
  }
  return {};
}

Result<std::optional<ToDaemon>> ReportReader::read(int pipe) {
  for (;;) {
    Frame frame;
    const ssize_t got = ::read(pipe, &frame, sizeof frame);
    if (got == 0) return Status(Code::kUnavailable, "the worker has ended");
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return {std::nullopt};
    if (got < 0) return Status::from_errno(errno, "reading a worker's report");
    const bool fits = got == static_cast<ssize_t>(sizeof frame) &&
                      frame.bytes <= kMostWorkerMessageBytes &&
                      bytes_.size() + frame.bytes <= kMostWorkerMessageBytes;
    if (!fits) return Status(Code::kProtocol, "a worker wrote bytes that are not a report");
    const size_t now = std::min<size_t>(frame.bytes, kBodyBytes);
    bytes_.insert(bytes_.end(), frame.body, frame.body + now);
    if (frame.bytes > kBodyBytes) continue;
    RCUDA_ASSIGN_OR_RETURN(auto message, decode_message<ToDaemon>(std::exchange(bytes_, {})));
    return {std::move(message)};
  }
}

}  // namespace rcuda::server
