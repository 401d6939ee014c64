#include "server/daemon/connection/handshake_debts.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace rcuda::server {

size_t HandshakeDebts::left(const Failures& failures, Clock::time_point now) {
  const auto seconds = std::chrono::duration<double>(now - failures.last).count();
  const double forgiven = std::max(seconds, 0.0) * kForgivenPerSecond;
  const auto count = static_cast<double>(failures.count);
  return forgiven >= count ? 0 : static_cast<size_t>(count - forgiven);
}

void HandshakeDebts::failed(const std::string& origin, Clock::time_point now) {
  if (failures_.size() >= kMostOrigins && !failures_.contains(origin)) forget(now);
  Failures& failures = failures_[origin];
  failures = {left(failures, now) + 1, now};
}

size_t HandshakeDebts::failures_of(const std::string& origin, Clock::time_point now) const {
  const auto found = failures_.find(origin);
  return found == failures_.end() ? 0 : left(found->second, now);
}

// Forgets half of the origins or more at a time, which keeps the cost for each failure low.
void HandshakeDebts::forget(Clock::time_point now) {
  std::vector<size_t> debts;
  for (const auto& [origin, failures] : failures_) debts.push_back(left(failures, now));
  const auto middle = debts.begin() + static_cast<ptrdiff_t>(debts.size() / 2);
  std::nth_element(debts.begin(), middle, debts.end());
  std::erase_if(failures_,
                [&, most = *middle](const auto& one) { return left(one.second, now) <= most; });
}

std::vector<size_t> HandshakeDebts::order(const std::vector<Step>& due,
                                          Clock::time_point now) const {
  std::vector<size_t> debts;
  std::map<std::string, size_t> known;
  for (const Step& step : due) {
    const auto [found, is_new] = known.try_emplace(*step.origin);
    if (is_new) found->second = step.unfinished + failures_of(*step.origin, now);
    debts.push_back(found->second);
  }
  std::vector<size_t> order(due.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const size_t count = std::min(kMostPerRound, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(),
                    [&](size_t a, size_t b) {
                      return std::tuple(debts[a], !due[a].begun, a) <
                             std::tuple(debts[b], !due[b].begun, b);
                    });
  order.resize(count);
  return order;
}

}  // namespace rcuda::server
