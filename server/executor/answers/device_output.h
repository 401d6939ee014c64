// DeviceOutput: makes the driver pass on what kernels printed, so that it reaches the client before
// the answer that the client waits for.
//
// Executor thread only. flush() does not wait for a GPU: it is called when the work that may have
// printed is done, and synchronises a stream that is never used.
#pragma once

#include "api/driver_table.h"
#include "server/executor/answers/output_capture.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {

class DeviceOutput {
 public:
  // `capture` null: output stays where the driver puts it. All outlive this object.
  DeviceOutput(const api::DriverTable& driver, SessionObjects& objects, OutputCapture* capture)
      : driver_(driver), objects_(objects), capture_(capture) {}

  // Code that may print was loaded. Before that flush() has nothing to do.
  void enable() { may_print_ = true; }
  // Publishes what kernels of the context printed so far.
  void flush(ContextState& context) {
    if (capture_ && may_print_) synchronize_and_drain(context);
  }
  // Publishes what the driver has passed on so far.
  void drain();

 private:
  void synchronize_and_drain(ContextState& context);

  const api::DriverTable& driver_;
  SessionObjects& objects_;
  OutputCapture* const capture_;
  bool may_print_ = false;
};

}  // namespace rcuda::server
