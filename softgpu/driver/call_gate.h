// The gate of the driver's calls: while it is closed, calls wait at their entry and no stream gets
// work (cuCheckpointProcessLock).
//
// Every entry point passes the gate in check_initialized(). A call that is already inside goes on;
// close() waits for such a call only while it submits work. Host functions may not call the driver,
// so they never wait here, and work that was submitted earlier can finish.
//
// Any thread. Blocking: pass() and Submission, while the gate is closed; close(), until its
// deadline.
#pragma once

#include <chrono>

namespace softgpu::driver::gate {

void pass();

// A submission of work. A thread may nest them.
class Submission {
 public:
  Submission();
  ~Submission();
  Submission(const Submission&) = delete;
  Submission& operator=(const Submission&) = delete;
};

// Closes the gate and waits until no submission is inside. False at the deadline, with the gate
// open. Only one thread opens and closes.
bool close(std::chrono::steady_clock::time_point deadline);
void open();

}  // namespace softgpu::driver::gate
