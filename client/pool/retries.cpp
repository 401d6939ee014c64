#include "client/pool/retries.h"

#include <algorithm>
#include <thread>

#include "common/base/log.h"

namespace rcuda::client {

bool Retries::again(const Status& failure, const std::function<void()>& while_waiting) {
  using std::chrono::milliseconds;
  constexpr milliseconds kStep{1'000};
  if (failure.code() != Code::kUnavailable) return false;
  const auto left = deadline_ - std::chrono::steady_clock::now();
  milliseconds pause = pauses_.next(std::chrono::floor<milliseconds>(left));
  if (pause.count() == 0) return false;
  if (failure.context() != reported_) {
    reported_ = failure.context();
    RCUDA_WARN("waiting (RCUDA_WAIT): %s", reported_.c_str());
  }
  for (; pause.count() > 0; pause -= kStep) {
    std::this_thread::sleep_for(std::min(pause, kStep));
    if (while_waiting) while_waiting();
  }
  return true;
}

}  // namespace rcuda::client
