#include "server/executor/metering/stream_frees.h"

namespace rcuda::server {

bool StreamFrees::add(const Bookings::Booking& booking, CUstream stream) {
  Free free{.booking = booking};
  if (driver_.cuCtxGetCurrent(&free.context) != CUDA_SUCCESS ||
      driver_.cuEventCreate(&free.reached, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
    return false;
  }
  if (driver_.cuEventRecord(free.reached, stream) != CUDA_SUCCESS) {
    driver_.cuEventDestroy_v2(free.reached);
    return false;
  }
  frees_.push_back(free);
  return true;
}

void StreamFrees::refresh(Bookings& bookings) {
  std::erase_if(frees_, [&](const Free& free) {
    if (driver_.cuEventQuery(free.reached) != CUDA_SUCCESS) return false;
    driver_.cuEventDestroy_v2(free.reached);
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
