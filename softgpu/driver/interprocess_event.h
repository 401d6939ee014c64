// InterprocessEvent: the state of an event that several processes share (cuIpcGetEventHandle).
//
// One page of shared memory counts recordings: each cuEventRecord takes the next number, and
// passing that point in its stream raises `completed` to it. Whoever waits takes the number
// recorded last, in whatever process, and sleeps on a futex until `completed` is there. The page is
// a memory file; a handle names it by process and descriptor, so the exporting process must be
// alive when it is opened, as with CUDA. Any thread of any of the processes; only wait() blocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <cuda.h>

#include "common/base/unique_fd.h"

namespace softgpu::driver {

class Context;

class InterprocessEvent {
 public:
  static std::shared_ptr<InterprocessEvent> create();
  // CUDA_ERROR_MAP_FAILED for bytes that are no handle and for events that cannot be opened.
  static CUresult open(const CUipcEventHandle& handle, std::shared_ptr<InterprocessEvent>* event);
  ~InterprocessEvent();
  InterprocessEvent(const InterprocessEvent&) = delete;
  InterprocessEvent& operator=(const InterprocessEvent&) = delete;

  CUipcEventHandle handle() const;

  uint64_t begin_recording();  // the number of the new recording
  void complete(uint64_t recording);
  uint64_t recorded() const;
  bool reached(uint64_t recording) const;
  // Ends early when `context`, if given, is being destroyed.
  void wait(uint64_t recording, Context* context) const;

 private:
  struct Shared;
  InterprocessEvent(rcuda::UniqueFd file, Shared* shared)
      : file_(std::move(file)), shared_(shared) {}

  const rcuda::UniqueFd file_;
  Shared* const shared_;
};

}  // namespace softgpu::driver
