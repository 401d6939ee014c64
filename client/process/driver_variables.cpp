#include "client/process/driver_variables.h"

#include <atomic>

namespace rcuda::client {
namespace {

cuda::DriverVariables kept;
std::atomic<bool> is_kept{false};  // set with release order after `kept`

}  // namespace

cuda::DriverVariables driver_variables() {
  return is_kept.load(std::memory_order_acquire) ? kept : cuda::read_driver_variables();
}

void keep_driver_variables() {
  kept = cuda::read_driver_variables();
  is_kept.store(true, std::memory_order_release);
}

}  // namespace rcuda::client
