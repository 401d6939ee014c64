// ContextWatch: notices that the contexts of a session have been ended by MPS (compute_share.h).
//
// A kernel that faults ends the contexts of all clients of MPS on that GPU, and MPS serves nobody
// until all these processes have ended. A session that does nothing would not notice, and a program
// may live on after its error. So the worker asks the driver once a second, and the session ends
// one second after the answer was an error. Until then the program gets its CUDA error. Without MPS
// nothing is asked.
//
// Executor thread only. Nothing blocks. Times are nanoseconds of the monotonic clock.
#pragma once

#include <cstdint>
#include <vector>

#include "api/driver_table.h"
#include "common/base/status.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {

class ContextWatch {
 public:
  // Both references outlive this object.
  ContextWatch(const api::DriverTable& driver, const std::vector<SessionDevice>& devices,
               SessionObjects& objects);

  bool watches() const { return !probes_.empty(); }
  uint64_t due() const { return due_; }  // when look() is to be called
  // An error if the session must end.
  Status look(uint64_t now);

 private:
  // A stream of the primary context that never gets work: asking about it disturbs no capture.
  struct Probe {
    wire::ObjectId context = 0;
    uint64_t generation = 0;
    CUstream stream = nullptr;
  };
  CUresult ask(Probe& probe);

  const api::DriverTable& driver_;
  SessionObjects& objects_;
  std::vector<Probe> probes_;
  uint64_t due_ = 0;
  bool ended_ = false;  // at the last look
};

}  // namespace rcuda::server
