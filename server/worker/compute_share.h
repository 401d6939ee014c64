// The compute share of a session (SessionLimits::sm_percent): its part of each device's
// multiprocessors, by NVIDIA's multi-process service (MPS).
//
// MPS limits each process that uses it to this part of each device, and runs kernels of several
// processes at the same time. The driver reads the limit from the environment when it starts, so a
// worker is started for one share, as it is for one set of devices. A session cannot change the
// limit, which holds for all contexts, streams and graphs of the process. Green contexts do not
// suit: their null stream does not wait for other streams. Besides, kernels of several processes do
// not run at the same time unless the processes use MPS (docs/quotas.md has the measurements).
//
// With MPS, a kernel that faults ends the contexts of all clients of MPS on that GPU.
//
// Functions: any thread. Blocking: check_contexts(), for the driver, at most a little longer than
// `patience`.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "api/driver_table.h"
#include "common/base/status.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {

// Variables for the environment of a worker, as NAME=value; none for a share of 0 (everything).
std::vector<std::string> share_environment(uint32_t sm_percent);

// Checks that the driver limits this process to `sm_percent` on all these devices; 0: no limit.
Status check_share(const api::DriverTable& driver, const std::vector<SessionDevice>& devices,
                   uint32_t sm_percent);

// Whether MPS serves one of these devices.
bool any_mps(const api::DriverTable& driver, const std::vector<SessionDevice>& devices);

// Checks that the contexts of an idle worker still live: with MPS, another process may have ended
// them. If the driver does not answer within `patience`, calls `expire`, which by default ends the
// process. (The EndWatch of the session does not run yet, and a worker that waits forever for MPS
// would still count as a session.)
Status check_contexts(const api::DriverTable& driver, const std::vector<SessionDevice>& devices,
                      std::chrono::nanoseconds patience,
                      std::function<void(const Status& why)> expire = {});

// ContextWatch: notices that MPS has ended the contexts of a session.
//
// A kernel that faults ends the contexts of all clients of MPS on that GPU, and MPS serves no
// process until all these clients have ended. An idle session would not notice the fault, and a
// program may go on after its error. So the worker queries the driver once a second, and ends the
// session after two errors in a row. Until then the program gets its CUDA error. Without MPS, the
// worker does not query.
//
// Executor thread only. Nothing blocks. Times are nanoseconds of the monotonic clock.
class ContextWatch {
 public:
  // `driver` and `objects` outlive this object.
  ContextWatch(const api::DriverTable& driver, const std::vector<SessionDevice>& devices,
               SessionObjects& objects);

  bool watches() const { return !probes_.empty(); }
  uint64_t due() const { return due_; }  // when look() is to be called
  // Returns an error if the session must end.
  Status look(uint64_t now);

 private:
  // A stream of the primary context that never gets work: querying it disturbs no capture.
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
  bool ended_ = false;  // the last look() got an error
};

}  // namespace rcuda::server
