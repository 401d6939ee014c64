#include "server/executor/metering/stream_frees.h"

#include "server/executor/objects/context_guard.h"
#include "server/executor/streams/capture.h"

namespace rcuda::server {

bool StreamFrees::add(const Bookings::Booking& booking, CUstream stream) {
  Free free{.booking = booking};
  // The stream's context need not be the current one.
  if (driver_.cuStreamGetCtx(stream, &free.context) != CUDA_SUCCESS) return false;
  const ContextGuard inside(driver_, free.context);
  // In a capture the event would become part of that.
  if (!inside.ok() || refuse_capture(driver_, stream) != CUDA_SUCCESS ||
      driver_.cuEventCreate(&free.event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
    return false;
  }
  if (driver_.cuEventRecord(free.event, stream) != CUDA_SUCCESS) {
    driver_.cuEventDestroy_v2(free.event);
    return false;
  }
  frees_.push_back(free);
  return true;
}

void StreamFrees::refresh(Bookings& bookings) {
  std::erase_if(frees_, [&](const Free& free) {
    if (driver_.cuEventQuery(free.event) != CUDA_SUCCESS) return false;
    driver_.cuEventDestroy_v2(free.event);
    bookings.give(free.booking);
    return true;
  });
}

void StreamFrees::give_all_of(CUcontext context, Bookings& bookings) {
  std::erase_if(frees_, [&](const Free& free) {
    if (free.context != context) return false;
    bookings.give(free.booking);
    return true;
  });
}

}  // namespace rcuda::server
