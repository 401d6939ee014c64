// Reports: the messages of a worker to the daemon, through a pipe that exists from the worker's
// start.
//
// A pipe carries no descriptors, so the daemon never receives, and never closes, a descriptor that
// a worker chose: closing some descriptors blocks for hours (docs/security.md). The daemon shuts
// its end of the worker's socket for receiving before the worker starts (worker_messages.h).
//
// A report has one or more frames of kReportBytes bytes, each written by one write(), so reports of
// several threads do not mix. Several threads report during the session, so each report must then
// fit into one frame. Reports from before the session may have more frames.
//
// Threads: any may send; one reads. Blocking: send_report(), until the deadline while the pipe is
// full. Errors: kTimeout at the deadline, kUnavailable at the end of the pipe, kProtocol for bytes
// that are not a report.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "server/protocol/worker_messages.h"

namespace rcuda::server {

inline constexpr size_t kReportBytes = 4096;  // PIPE_BUF: a write of this size is atomic

// `pipe`: the writing end, which is non-blocking.
Status send_report(int pipe, const ToDaemon& message, Deadline deadline);

// The daemon's end, for reading.
class ReportReader {
 public:
  // Reads the bytes that have arrived. Returns nothing if the rest of the report has not arrived
  // yet. After an error, do not read again.
  Result<std::optional<ToDaemon>> read(int pipe);
  // For a successor (server/daemon/ops/successor.h): the beginning of a report that has not arrived
  // completely. go_on() continues with it.
  const std::vector<std::byte>& begun() const { return bytes_; }
  void go_on(std::vector<std::byte> begun) { bytes_ = std::move(begun); }

 private:
  std::vector<std::byte> bytes_;  // of the frames so far
};

}  // namespace rcuda::server
