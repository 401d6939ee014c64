#include "softgpu/driver/host_callback.h"

#include <mutex>

namespace softgpu::driver {
namespace {

thread_local bool inside = false;

class Inside {
 public:
  Inside() { inside = true; }
  ~Inside() { inside = before_; }

 private:
  const bool before_ = inside;
};

}  // namespace

bool in_host_function() { return inside; }

void run_host_operation(const HostOperation& operation, CUresult status) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const Inside guard;
  if (operation.callback != nullptr) {
    operation.callback(operation.stream, status, operation.user_data);
  } else {
    operation.function(operation.user_data);
  }
}

void run_application_code(CUhostFn function, void* user_data) {
  const Inside guard;
  function(user_data);
}

}  // namespace softgpu::driver
