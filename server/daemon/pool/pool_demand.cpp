#include "server/daemon/pool/pool_demand.h"

namespace rcuda::server {

void PoolDemand::taken(Time now) {
  lately_.push_back(now);
  while (lately_.size() > most_ || (!lately_.empty() && now - lately_.front() > kSpan)) {
    lately_.pop_front();
  }
  if (lately_.size() >= peak_ || now - peak_at_ >= keep_) {
    peak_ = lately_.size();
    peak_at_ = now;
  }
}

size_t PoolDemand::idle(Time now) const {
  return now - peak_at_ < keep_ ? std::clamp(peak_, least_, most_) : least_;
}

PoolDemand::Time PoolDemand::next_change(Time now) const {
  return idle(now) > least_ ? peak_at_ + keep_ : Time::max();
}

}  // namespace rcuda::server
