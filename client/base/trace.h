// RCUDA_TRACE=file.json: a timeline of this process's CUDA calls and of what its servers did for
// them, in Chrome's trace format, which Perfetto opens.
//
// What is in it: a slice per driver call of the application, on the calling thread; inside it the
// commands that the call sent (posted, or waited for) and the waits for the GPU. Per server the
// same commands as its executor carried them out, and kernels and copies as the GPU did. An arrow
// (flow) leads from a command to its execution; both have the same number, counted per session.
//
// Clocks: times are this machine's CLOCK_MONOTONIC. A server on this machine has the same. Of any
// other, each command that was waited for tells that its execution lies between sending and answer;
// the middle of the tightest such pair gives the difference, at worst half of what the network took
// (the file says how much). A pair grows less certain with age, by as much as clocks may drift
// apart.
//
// The file: %p in the name becomes the process's id. Without one, a process that finds the file
// being written by another inserts its id before the suffix. Events are appended several times a
// second, so a process that dies leaves a file that Perfetto opens; one that exits closes the JSON
// properly.
//
// Threads: any, unless a function says otherwise. Recording appends to a list of the calling
// thread; a thread of this module's own writes. Nothing blocks but start() and finish(). While no
// trace is written all this costs a load per call.
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

// Creates the file and starts recording. Called once, by cuInit.
Status start(const std::string& path);
// Writes what is left and closes the file; the sessions have ended.
void finish();
// In a forked child: the file is the parent's.
void abandon() noexcept;

// A session's number in the trace. `same_clock`: the server runs on this machine.
uint32_t add_server(const std::string& name, uint32_t worker_pid, bool same_clock);
// What the worker reports. Called by the session's event thread.
void server_events(uint32_t server, std::span<const wire::TraceEvent> events);
// Whether the worker's report of a command has come.
bool reported(uint32_t server, uint64_t command);

// A slice on the calling thread, from construction to destruction: a call of the application, or a
// part of one. Name and category are literals.
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

// A command, from before it is sent until it is sent (posted) or answered.
class CommandSpan {
 public:
  CommandSpan(uint32_t server, uint16_t opcode, bool posted);
  ~CommandSpan();
  CommandSpan(const CommandSpan&) = delete;
  CommandSpan& operator=(const CommandSpan&) = delete;
  // What the command's header wants for the worker to report on it.
  uint16_t flags() const { return begin_ns_ ? wire::kFlagTraced : wire::kFlagNone; }
  void sent(uint64_t command) { command_ = command; }  // its number; never called: it was not sent

 private:
  const uint32_t server_;
  const uint16_t opcode_;
  const bool posted_;
  const uint64_t begin_ns_;  // 0: no trace is written
  uint64_t command_ = 0;
};

}  // namespace rcuda::client::trace
