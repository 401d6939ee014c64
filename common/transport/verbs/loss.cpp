#include "common/transport/verbs/loss.h"

#include "common/transport/verbs/errors.h"

namespace rcuda::transport::verbs {

void Loss::watch(ibv_context* context, uint8_t port) {
  context_ = context;
  port_ = port;
}

void Loss::note(Sign sign, const std::string& what) {
  {
    MutexLock lock(mutex_);
    const bool first = sign_ == Sign::kNone;
    if (sign > sign_) {
      sign_ = sign;
      what_ = what;
    }
    if (!first) return;
    due_ = Clock::now() + kGrace;
  }
  on_first_();
}

Loss::Clock::time_point Loss::due() const {
  MutexLock lock(mutex_);
  return due_;
}

std::string Loss::reason() const {
  MutexLock lock(mutex_);
  const Sign sign = sign_;
  const std::string what = what_;
  lock.unlock();
  if (sign == Sign::kDevice) return what;
  const std::string port = port_problem(context_, port_);
  return port.empty() ? what : port + " (" + what + ")";
}

std::string Loss::reason_behind(const std::string& what) const {
  MutexLock lock(mutex_);
  const bool own = sign_ >= Sign::kQueuePair;
  lock.unlock();
  if (own) return reason();
  const std::string port = port_problem(context_, port_);
  return port.empty() ? what : port + " (" + what + ")";
}

}  // namespace rcuda::transport::verbs
