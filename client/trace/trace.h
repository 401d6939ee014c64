// RCUDA_TRACE=file.json: writes a timeline of this process's CUDA calls and of their execution by
// the servers, in Chrome's trace format, which Perfetto opens.
//
// Contents. The calling thread has a slice for each driver call of the application. Inside it are
// the commands that the call sent (posts and round trips) and its waits for the GPU. Each server
// has slices for the same commands on its executor thread, and for kernels and copies on the GPU.
// An arrow (flow) leads from a command to its execution; both carry the command's number, counted
// per session.
//
// Clocks. Times are this machine's CLOCK_MONOTONIC. A server on this machine uses the same clock.
// For any other server, round trips measure the difference between the clocks. The execution lies
// between the sending of the command and the answer, so the midpoints of both intervals are
// compared. The round trip with the least network time determines the difference. The error is at
// most half of that time; the file contains this limit. The uncertainty of a measurement grows with
// its age, because clocks drift apart.
//
// The file. %p in the name is replaced by the process id. Without %p, if another process is writing
// the file, this process inserts its id before the suffix. Events are appended several times a
// second, so Perfetto can open the file of a process that died. A process that exits also completes
// the JSON.
//
// Threads: any, unless a function says otherwise. Recording appends to a list of the calling
// thread; the trace thread writes the file. Only start() and finish() block. While no trace is
// written, the cost is one load per call.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include <cuda.h>

#include "common/base/status.h"
#include "common/wire/protocol.h"

namespace rcuda::client::trace {

namespace internal {
extern std::atomic<bool> writing;
}
inline bool on() { return internal::writing.load(std::memory_order_relaxed); }

// Creates the file and starts recording and the trace thread. Called once, by Process::connect().
Status start(const std::string& path);
// Writes the remaining events and closes the file. Called after the sessions have ended.
void finish();
// Called in a forked child. Closes the child's descriptor. The parent continues to write the file.
void abandon() noexcept;

// Returns the session's number in the trace. `same_clock`: the server runs on this machine.
uint32_t add_server(const std::string& name, uint32_t worker_pid, bool same_clock);
// Records the executions that the worker reports. Called by the session's event thread.
void server_events(uint32_t server, std::span<const wire::TraceEvent> events);
// Whether the worker has reported this command or a later one. True if no trace is written.
bool reported(uint32_t server, uint64_t command);

// A slice on the calling thread, from construction to destruction: a call of the application, or a
// part of a call. Name and category must be string literals.
class Span {
 public:
  explicit Span(const char* name, const char* category = "api");
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  CUresult result(CUresult result) {
    result_ = result;
    return result;
  }

 private:
  const char* const name_;
  const char* const category_;
  const uint64_t begin_ns_;  // 0: no trace is written
  CUresult result_ = CUDA_SUCCESS;
};

// The slice of a command: from before it is sent until it is sent (post) or answered (call).
class CommandSpan {
 public:
  CommandSpan(uint32_t server, uint16_t opcode, bool posted);
  ~CommandSpan();
  CommandSpan(const CommandSpan&) = delete;
  CommandSpan& operator=(const CommandSpan&) = delete;
  // Returns the flags for the command's header. With kFlagTraced, the worker reports the command's
  // execution.
  uint16_t flags() const { return begin_ns_ ? wire::kFlagTraced : wire::kFlagNone; }
  // Sets the command's number. If it is 0, or sent() is never called, the command was not sent and
  // is not recorded.
  void sent(uint64_t command) { command_ = command; }

 private:
  const uint32_t server_;
  const uint16_t opcode_;
  const bool posted_;
  const uint64_t begin_ns_;  // 0: no trace is written
  uint64_t command_ = 0;
};

}  // namespace rcuda::client::trace
