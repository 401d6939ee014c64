#include "server/daemon/pool/pool_demand.h"

namespace rcuda::server {

void PoolDemand::waiting(size_t clients, Time now) { waiting_.resize(clients, now); }

void PoolDemand::taken(Time now) {
  lately_.push_back(waiting_.empty() ? now : waiting_.front());
  if (!waiting_.empty()) waiting_.pop_front();
  while (lately_.size() > most_ || (!lately_.empty() && lately_.back() - lately_.front() > kSpan)) {
    lately_.pop_front();
  }
  if (lately_.size() <= least_) return;
  while (!peaks_.empty() && peaks_.back().sessions <= lately_.size()) peaks_.pop_back();
  while (!peaks_.empty() && now - peaks_.front().at >= keep_) peaks_.pop_front();
  peaks_.push_back({lately_.size(), now});
}

size_t PoolDemand::idle(Time now) const {
  for (const Peak& peak : peaks_) {
    if (now - peak.at < keep_) return peak.sessions;
  }
  return least_;
}

PoolDemand::Time PoolDemand::next_change(Time now) const {
  for (const Peak& peak : peaks_) {
    if (now - peak.at < keep_) return peak.at + keep_;
  }
  return Time::max();
}

}  // namespace rcuda::server
