// InterprocessEvent: the state of an event that several processes share (cuIpcGetEventHandle).
//
// One page of shared memory counts recordings. Each cuEventRecord takes the next number; when the
// stream passes that point, `completed` rises to the number. A waiter in any process takes the
// number of the latest recording and sleeps on a futex until `completed` reaches it. The page is a
// memory file, which the exporting process passes on (softgpu/driver/exports.h). That process must
// be alive when the handle is opened, as with CUDA. Any thread of any of the processes. Blocking:
// wait(), and open() for at most a second.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <cuda.h>

#include "common/base/unique_fd.h"

namespace softgpu::driver {

class Context;

class InterprocessEvent : public std::enable_shared_from_this<InterprocessEvent> {
 public:
  static std::shared_ptr<InterprocessEvent> create();
  // CUDA_ERROR_MAP_FAILED if the bytes are not a handle or the event cannot be opened.
  static CUresult open(const CUipcEventHandle& handle, std::shared_ptr<InterprocessEvent>* event);
  ~InterprocessEvent();
  InterprocessEvent(const InterprocessEvent&) = delete;
  InterprocessEvent& operator=(const InterprocessEvent&) = delete;

  CUresult get_handle(CUipcEventHandle* handle) const;

  uint64_t begin_recording();  // returns the number of the new recording
  void complete(uint64_t recording);
  uint64_t recorded() const;
  bool reached(uint64_t recording) const;
  // Returns early if `context`, if given, is being destroyed.
  void wait(uint64_t recording, Context* context) const;

 private:
  struct Shared;
  InterprocessEvent(rcuda::UniqueFd file, Shared* shared);

  const uint64_t id_;  // the id of the event's export (exports.h)
  const rcuda::UniqueFd file_;
  Shared* const shared_;
};

}  // namespace softgpu::driver
