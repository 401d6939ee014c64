#include "server/protocol/reports.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include <poll.h>
#include <unistd.h>

namespace rcuda::server {
namespace {

constexpr size_t kBodyBytes = kReportBytes - 4 * sizeof(uint32_t);

struct Frame {
  WorkerMessageType type;
  uint32_t index;
  uint32_t bytes;  // of the body, of this frame and those that follow
  uint32_t reserved;
  std::byte body[kBodyBytes];
};
static_assert(sizeof(Frame) == kReportBytes);

Status write_frame(int pipe, const Frame& frame, Deadline deadline) {
  for (;;) {
    const ssize_t written = ::write(pipe, &frame, sizeof frame);
    if (written == static_cast<ssize_t>(sizeof frame)) return {};
    if (written >= 0) return {Code::kInternal, "a report to the daemon was cut short"};
    if (errno == EPIPE) return {Code::kUnavailable, "the daemon has gone"};
    if (errno != EAGAIN && errno != EINTR) return Status::from_errno(errno, "a report");
    pollfd item{pipe, POLLOUT, 0};
    if (errno == EAGAIN && ::poll(&item, 1, poll_timeout_ms(deadline)) == 0) {
      return {Code::kTimeout, "the daemon does not read reports"};
    }
  }
}

}  // namespace

Status send_report(int pipe, const WorkerMessage& message, Deadline deadline) {
  size_t sent = 0;
  do {
    const size_t left = message.body.size() - sent;
    Frame frame{message.type, message.index, static_cast<uint32_t>(left), 0, {}};
    const size_t now = std::min(left, kBodyBytes);
    std::copy_n(message.body.begin() + static_cast<ptrdiff_t>(sent), now, frame.body);
    RCUDA_RETURN_IF_ERROR(write_frame(pipe, frame, deadline));
    sent += now;
  } while (sent < message.body.size());
  return {};
}

Result<std::optional<WorkerMessage>> ReportReader::read(int pipe) {
  for (;;) {
    Frame frame;
    const ssize_t got = ::read(pipe, &frame, sizeof frame);
    if (got == 0) return Status(Code::kUnavailable, "the worker has gone");
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return {std::nullopt};
    if (got < 0) return Status::from_errno(errno, "reading a worker's report");
    const size_t have = message_.body.size();
    const bool fits = got == static_cast<ssize_t>(sizeof frame) &&
                      frame.bytes <= kMaxWorkerMessageBytes &&
                      have + frame.bytes <= kMaxWorkerMessageBytes;
    if (!fits) return Status(Code::kProtocol, "a worker wrote what is not a report");
    message_.type = frame.type;
    message_.index = frame.index;
    const size_t now = std::min<size_t>(frame.bytes, kBodyBytes);
    message_.body.insert(message_.body.end(), frame.body, frame.body + now);
    if (frame.bytes > kBodyBytes) continue;
    return {std::exchange(message_, WorkerMessage())};
  }
}

}  // namespace rcuda::server
