// SessionLoop: reads a session's commands in order and executes them, until the session ends.
//
// The thread that calls run() is the executor thread. It reads a command, checks its header, makes
// its context current and calls the generated or custom handler. Between commands it polls
// completions. It never waits for a GPU: while completions are pending and no command arrives, it
// keeps polling. After some milliseconds it sleeps between polls; the longer nothing happens, the
// longer it sleeps. With nothing pending it sleeps in Link::wait. The CommandScheduler decides
// whether a command runs now. A session has no state outside of this object, so a process may run
// several sessions on several threads (tests do).
// Threads: stop() and over() from any thread, everything else on the executor thread. Blocking:
// run(), until the session is over. Errors: run() returns ok if the client ended the session or
// stop() was called, kUnavailable if the client or the Link is lost or a time limit ended the
// session, kProtocol for a malformed command.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/wire/protocol.h"
#include "common/wire/ring.h"
#include "server/driver/device_trace.h"
#include "server/executor/core/command_scheduler.h"
#include "server/executor/core/executor.h"
#include "server/protocol/work_page.h"
#include "server/worker/compute_share.h"
#include "server/worker/parker.h"
#include "server/worker/session_time.h"
#include "server/worker/waits_ahead.h"

namespace rcuda::server {

struct SessionLoopOptions {
  // How long to poll for the next command before sleeping. A wake-up costs some 10 µs. With few
  // cores this time should be short, because polling may keep the client from running.
  std::chrono::nanoseconds spin = std::chrono::microseconds(50);
  // The clock of the session's limits, in nanoseconds; Ledger::book_copy() uses the same clock.
  // After a jump of the clock, Link::interrupt() makes the loop read it.
  std::function<uint64_t()> now;  // empty: the monotonic clock
  WorkPage* work = nullptr;       // where the session's work is counted; null: nowhere
  // With few processors: after four times `spin`, the thread offers its processor to other threads
  // between two polls.
  bool yields = false;
  // With very few processors: the thread sleeps while bytes of the client are expected.
  bool sleeps_for_arrivals = false;
  Parker* parker = nullptr;     // null: the session is never parked
  bool oversubscribes = false;  // the daemon parks other sessions for this one; needs a parker
};

class SessionLoop {
 public:
  SessionLoop(const SessionResources& resources, const SessionLoopOptions& options);
  ~SessionLoop();

  // Exposes the staging region, reports to the client that the session is ready, and serves the
  // session.
  Status run();
  // Makes run() return soon. Any thread. `why`: the reason, which the client reports with the lost
  // session; empty: no reason is sent. At most one call may pass a reason.
  void stop(std::string why = {});
  // Makes run() check the Parker for a step. Any thread.
  void interrupt() { link_.interrupt(); }
  // Returns an error if the session has outlived its time limit. Any thread, also while the
  // executor thread is in a call of the driver.
  Status over() const;

  Executor& executor() { return executor_; }
  bool ended_by_client() const { return ended_; }

 private:
  using Clock = std::chrono::steady_clock;

  Status serve();
  uint64_t now() const;  // SessionLoopOptions::now
  // Warns the client before the session's time is over. Returns an error, which ends the session,
  // if its time is over or its contexts have ended.
  Status check_limits();
  Status end_for(const std::string& why);
  // Reports to the client why its session ends, and gives it a moment to read the reason.
  void tell_end(const std::string& why);
  // When the loop must look at the session's limits again; SessionTime::kNever without limits.
  uint64_t limits_due() const;
  void note_busy();
  // session_park.cpp
  Status take_step();
  Status come_to_rest();
  Status rest();
  Status be_parked();
  Status move_nccl(const std::vector<uint64_t>* suspends, std::string* why);
  uint64_t ask_for_room(ParkAnswer::What what, std::vector<uint64_t> about);
  std::optional<ParkAnswer> obstacle();
  void remember_memory();
  std::vector<uint64_t> movable_bytes();
  bool move_to_host();
  bool move_back(uint64_t keep);
  bool answer_at_rest(std::span<const std::byte> frame);
  bool is_over() const;
  Status read_at_rest();
  Result<std::optional<ParkStep>> next_step(Clock::time_point until);
  Status wake_up();
  void move_to(const std::vector<uint32_t>& devices);
  // Whether the header names one of the client's reply slots. A reply is written nowhere else.
  static bool has_reply_slot(const wire::CommandHeader& header);
  // Executes the next command. Returns false if there is no command, or if the command must wait.
  Result<bool> next();
  // `ahead`: the command overtakes earlier commands; next() counts the command later, when it
  // reaches its frame in the ring.
  Status handle(std::span<const std::byte> frame, bool ahead = false);
  // Executes the waits that may overtake earlier commands (WaitsAhead), and ends the waits whose
  // events are reached.
  Status look_ahead();
  // `number`: the command's number in the session, from 1, as traces show it; 0 if the command
  // overtakes earlier commands.
  Status carry_out(const wire::CommandHeader& header, std::span<const std::byte> body,
                   uint64_t number);
  HandlerResult dispatch(const wire::CommandHeader& header, std::span<const std::byte> body,
                         const ReplyTarget& target);
  Status idle();
  // Adds a command that was carried out to the session's totals.
  void count(uint16_t opcode, CUresult result);
  void publish_work();
  void trace_device(const wire::CommandHeader& header, std::span<const std::byte> body,
                    uint64_t number);
  void flush_trace();

  transport::Link& link_;
  const SessionLoopOptions options_;
  Executor executor_;
  const LoopServices services_;
  SessionTime time_;
  ContextWatch contexts_;
  uint64_t commands_seen_ = 0;  // the number of commands at the last check_limits()
  wire::RingReader ring_;
  WaitsAhead waits_ahead_{ring_};
  std::string stop_why_;  // written before stop_, read after it
  std::atomic<bool> stop_{false};
  bool ended_ = false;
  Status failure_;  // the failure of a postponed command
  Clock::time_point last_activity_;
  bool copied_ = false;  // a peer copy was in progress when the loop was last idle
  CommandScheduler scheduler_;
  // The next command, while the scheduler holds it back, or while the session is parked.
  std::vector<std::byte> held_back_;
  bool parked_ = false;       // the driver must not be called
  bool wake_wanted_ = false;  // a command or the daemon (kWake) wants the session to wake
  uint64_t rests_ = 0;        // how often the session has come to rest
  // Set while the daemon wants the session to rest: the time at which the session's work must have
  // ended. Meanwhile no further command is carried out.
  std::optional<Clock::time_point> rest_until_;
  struct MemoryInfo {
    size_t free = 0, total = 0;
  };
  std::map<CUdevice, MemoryInfo> memory_info_;  // as it was when the session came to rest
  std::vector<std::byte> reply_;
  std::vector<wire::TraceEvent> trace_;
  std::unique_ptr<DeviceTrace> device_trace_;  // null: no command was traced so far
};

}  // namespace rcuda::server
