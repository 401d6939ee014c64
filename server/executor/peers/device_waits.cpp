#include "server/executor/peers/device_waits.h"

#include <memory>
#include <utility>

namespace rcuda::server {

void DeviceWaits::postpone(Call call, int attempts) {
  const auto kept = std::make_shared<Call>(std::move(call));
  const auto work_is_done = [this, kept, attempts](CUresult) {
    const auto next = [this, kept, attempts] {
      jobs_.post([this, kept, attempts] { make(std::move(*kept), attempts); });
    };
    if (kept->before) return kept->before(next);
    next();
  };
  ContextState* const context =
      kept->waits_for_work ? objects_.find_context(kept->context) : nullptr;
  if (!context) return work_is_done(CUDA_SUCCESS);
  idle_.when_idle(*context, work_is_done);
}

bool DeviceWaits::may_call(ContextState& context) {
  return when_free_.empty() && !peers_.holding() && idle_.known_idle(context);
}

void DeviceWaits::make(Call call, int attempts) {
  constexpr int kMaxAttempts = 3;
  if (call.waits_for_work && attempts < kMaxAttempts && is_busy(call.context)) {
    return postpone(std::move(call), attempts + 1);
  }
  // Checked last: while this call waited for its context, the executor ran other commands, and one
  // of them may hold a stream.
  if (when_free_.empty() && !peers_.holding()) return call.run();
  when_free_.push_back(std::move(call.run));
}

bool DeviceWaits::is_busy(wire::ObjectId id) {
  if (objects_.make_current(id) != CUDA_SUCCESS) return false;
  ContextState* const context = objects_.current_context();
  return context && !idle_.known_idle(*context);
}

bool DeviceWaits::run_freed() {
  if (when_free_.empty() || peers_.holding()) return false;
  for (const Action& run : std::exchange(when_free_, {})) run();
  return true;
}

}  // namespace rcuda::server
