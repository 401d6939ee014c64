#include "p2p/planner/correction.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace rcuda::p2p {
namespace {

constexpr double kNoticeable = 0.02;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// A plan of one chunk is the same plan whatever the size.
uint64_t chunk_key(const Chunking& chunking) {
  return chunking.depth == 1 ? 0 : chunking.chunk_bytes;
}

}  // namespace

unsigned octave_of(uint64_t bytes) {
  return bytes == 0 ? 0 : static_cast<unsigned>(std::bit_width(bytes) - 1);
}

void Corrections::observe(const Plan& plan, uint64_t bytes, double observed_us,
                          double predicted_us) {
  if (!(predicted_us > 0) || !std::isfinite(observed_us) || observed_us <= 0) return;
  const unsigned octave = octave_of(bytes);
  Ratios& ratios = families_[{octave, plan.strategy, plan.route}]
                            [{chunk_key(plan.chunking), plan.chunking.depth}];
  ratios.last[ratios.count % kKept] = observed_us / predicted_us;
  ++ratios.count;
  if (ratios.count < kEnough) return;
  const size_t kept = std::min(ratios.count, kKept);
  const double middle =
      median({ratios.last.begin(), ratios.last.begin() + static_cast<std::ptrdiff_t>(kept)});
  const double factor = std::clamp(middle, 1.0 / kLimit, kLimit);
  const bool first = ratios.count == kEnough;
  if (first || std::abs(factor - ratios.factor) > kNoticeable * ratios.factor) {
    ratios.factor = factor;
    ++versions_[octave];
  }
}

double Corrections::factor(const Plan& plan, uint64_t bytes) const {
  const unsigned octave = octave_of(bytes);
  const auto family = families_.find({octave, plan.strategy, plan.route});
  if (family == families_.end() && plan.strategy == Strategy::kV4b) {
    // One chunk takes the same legs as several: what is wrong about them is wrong for both.
    const Plan single{Strategy::kV2b, plan.route, {bytes, 1}, 0, {}};
    return families_.contains({octave, single.strategy, single.route}) ? factor(single, bytes)
                                                                       : 1.0;
  }
  if (family == families_.end()) return 1.0;
  const Ratios* own = find(plan, bytes);
  if (own && own->count >= kEnough) return own->factor;
  std::vector<double> factors;
  for (const auto& [chunks, ratios] : family->second) {
    if (ratios.count >= kEnough) factors.push_back(ratios.factor);
  }
  return factors.empty() ? 1.0 : median(std::move(factors));
}

const Corrections::Ratios* Corrections::find(const Plan& plan, uint64_t bytes) const {
  const auto family = families_.find({octave_of(bytes), plan.strategy, plan.route});
  if (family == families_.end()) return nullptr;
  const auto own = family->second.find({chunk_key(plan.chunking), plan.chunking.depth});
  return own == family->second.end() ? nullptr : &own->second;
}

bool Corrections::known(const Plan& plan, uint64_t bytes) const {
  const Ratios* own = find(plan, bytes);
  return own && own->count >= kEnough;
}

size_t Corrections::known_plans(uint64_t bytes) const {
  size_t count = 0;
  for (const auto& [family, plans] : families_) {
    if (std::get<0>(family) != octave_of(bytes)) continue;
    for (const auto& [chunks, ratios] : plans) count += ratios.count >= kEnough ? 1 : 0;
  }
  return count;
}

uint64_t Corrections::version(uint64_t bytes) const {
  const auto found = versions_.find(octave_of(bytes));
  return found == versions_.end() ? 0 : found->second;
}

void Corrections::clear() {
  families_.clear();
  versions_.clear();
}

}  // namespace rcuda::p2p
