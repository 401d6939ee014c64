// The gate of the driver's calls: while it is closed, calls wait at their entry and no stream gets
// work (cuCheckpointProcessLock).
//
// Entry points that need the driver's state pass the gate in check_initialized(). A call that is
// already inside continues; close() waits for such a call only while it submits work. Host
// functions may not call the driver, so they never wait here, and work that was submitted earlier
// can finish.
//
// Any thread. Blocking: pass() and Submission, while the gate is closed; close(), until its
// deadline.
#pragma once

#include <chrono>

namespace softgpu::driver::gate {

// Returns when the gate is open. Within a submission it returns immediately.
void pass();

// Exists while a thread submits work. The constructor waits while the gate is closed. A thread may
// nest submissions.
class Submission {
 public:
  Submission();
  ~Submission();
  Submission(const Submission&) = delete;
  Submission& operator=(const Submission&) = delete;
};

// Closes the gate and waits until no submission is in progress. Returns false, with the gate open,
// if the deadline passes first. Only one thread may call close() and open().
bool close(std::chrono::steady_clock::time_point deadline);
void open();

}  // namespace softgpu::driver::gate
