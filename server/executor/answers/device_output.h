// DeviceOutput: makes the driver write out the output of kernels, so that it reaches the client
// before the answer that the client waits for.
//
// Executor thread only. flush() does not wait for a GPU: it is called after the work that may have
// printed is done, and it synchronises a stream that never gets work.
#pragma once

#include "api/driver_table.h"
#include "server/executor/answers/output_capture.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {

class DeviceOutput {
 public:
  // `capture` null: output is not captured. All outlive this object.
  DeviceOutput(const api::DriverTable& driver, SessionObjects& objects, OutputCapture* capture)
      : driver_(driver), objects_(objects), capture_(capture) {}

  // To be called when code that may print is loaded. Until then flush() does nothing.
  void enable() { may_print_ = true; }
  bool may_print() const { return capture_ && may_print_; }
  // Publishes the output that kernels of the context have printed so far.
  void flush(ContextState& context) {
    if (may_print()) synchronize_and_drain(context);
  }
  // Publishes the output that the driver has written so far.
  void drain();

 private:
  void synchronize_and_drain(ContextState& context);

  const api::DriverTable& driver_;
  SessionObjects& objects_;
  OutputCapture* const capture_;
  bool may_print_ = false;
};

}  // namespace rcuda::server
