#include "p2p/plan/leg_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

namespace rcuda::p2p {
namespace {

constexpr double kStraightLineTolerance = 0.02;
// The size of the second knot of a linear leg. Any size would do, because the line through the two
// knots is extrapolated.
constexpr uint64_t kLinearKnotBytes = uint64_t{1} << 20;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double interpolate(const LegModel::Knot& a, const LegModel::Knot& b, uint64_t bytes) {
  const double span = static_cast<double>(b.bytes) - static_cast<double>(a.bytes);
  const double at = static_cast<double>(bytes) - static_cast<double>(a.bytes);
  return a.us + (b.us - a.us) * at / span;
}

// Pool-adjacent-violators: makes the sequence non-decreasing with the smallest change. A larger
// transfer never takes less time; measurements that say otherwise are noise.
void make_monotone(std::vector<LegModel::Knot>& knots) {
  struct Pool {
    double sum;
    size_t count;
  };
  std::vector<Pool> pools;
  for (const auto& knot : knots) {
    pools.push_back({knot.us, 1});
    while (pools.size() > 1) {
      const Pool last = pools.back();
      const Pool before = pools[pools.size() - 2];
      if (before.sum * static_cast<double>(last.count) <=
          last.sum * static_cast<double>(before.count)) {
        break;
      }
      pools.pop_back();
      pools.back() = {before.sum + last.sum, before.count + last.count};
    }
  }
  size_t i = 0;
  for (const Pool& pool : pools) {
    for (size_t k = 0; k < pool.count; ++k) {
      knots[i++].us = pool.sum / static_cast<double>(pool.count);
    }
  }
}

// Douglas-Peucker with a relative tolerance: keeps the knots at which the line bends.
void keep_bends(const std::vector<LegModel::Knot>& knots, size_t first, size_t last,
                std::vector<bool>& keep) {
  double worst = kStraightLineTolerance;
  size_t at = first;
  for (size_t i = first + 1; i < last; ++i) {
    const double line = interpolate(knots[first], knots[last], knots[i].bytes);
    const double error = std::abs(line - knots[i].us) / std::max(knots[i].us, 1e-9);
    if (error > worst) {
      worst = error;
      at = i;
    }
  }
  if (at == first) return;
  keep[at] = true;
  keep_bends(knots, first, at, keep);
  keep_bends(knots, at, last, keep);
}

}  // namespace

LegModel LegModel::linear(double latency_us, double gbps, double delay_us) {
  LegModel model;
  const double per_byte_us = 1e-3 / gbps;
  const double second_us = latency_us + static_cast<double>(kLinearKnotBytes) * per_byte_us;
  model.knots_ = {{0, latency_us, delay_us}, {kLinearKnotBytes, second_us, delay_us}};
  return model;
}

Result<LegModel> LegModel::from_knots(std::vector<Knot> knots) {
  if (knots.size() < 2) {
    return Status(Code::kInvalidArgument,
                  "a leg model needs at least 2 knots and has " + std::to_string(knots.size()));
  }
  for (size_t i = 0; i < knots.size(); ++i) {
    if (!std::isfinite(knots[i].delay_us) || knots[i].delay_us < 0) {
      return Status(Code::kInvalidArgument, "the delay of knot " + std::to_string(i) +
                                                " of a leg model is negative or not finite");
    }
    if (!std::isfinite(knots[i].us) || knots[i].us < 0 ||
        (i > 0 && (knots[i].bytes <= knots[i - 1].bytes || knots[i].us < knots[i - 1].us))) {
      return Status(
          Code::kInvalidArgument,
          "knot " + std::to_string(i) +
              " of a leg model is invalid: sizes must increase, and times must be finite, must not "
              "be negative and must not decrease");
    }
  }
  LegModel model;
  model.knots_ = std::move(knots);
  return model;
}

namespace {

// Samples in microseconds, by the size of their transfers.
struct Samples {
  std::map<uint64_t, std::vector<double>> singles;
  std::map<uint64_t, std::vector<double>> per_transfer_in_trains;
  std::map<uint64_t, uint32_t> train_length;
};

Result<Samples> by_size(std::span<const LegSample> samples) {
  Samples sorted;
  for (const LegSample& sample : samples) {
    if (!std::isfinite(sample.us) || sample.us <= 0 || sample.transfers == 0) {
      return Status(
          Code::kInvalidArgument,
          "a measured sample of a leg has no transfers, or its time is not positive and finite");
    }
    if (sample.transfers == 1) {
      sorted.singles[sample.bytes].push_back(sample.us);
    } else {
      sorted.per_transfer_in_trains[sample.bytes].push_back(sample.us / sample.transfers);
      sorted.train_length[sample.bytes] = sample.transfers;
    }
  }
  if (sorted.singles.size() < 2) {
    return Status(Code::kInvalidArgument,
                  "a leg model needs single transfers of at least 2 sizes; " +
                      std::to_string(sorted.singles.size()) + " were measured");
  }
  return sorted;
}

// Returns the representative sample. For legs over sockets (kTogether) this is the shortest sample:
// other activity can only lengthen a transfer, so the shortest sample is nearest to the undisturbed
// time. For other legs, the median is representative.
double typical(const std::vector<double>& times, Sharing sharing) {
  return sharing == Sharing::kTogether ? *std::min_element(times.begin(), times.end())
                                       : median(times);
}

// The result of compare_trains(): the occupancy for each transfer size, and the delay.
struct Trains {
  std::map<uint64_t, double> occupancies;
  double delay_us = 0;
};

// Computes occupancies and delay: a train of k transfers takes delay + k × occupancy, and a single
// transfer takes delay + occupancy.
Trains compare_trains(const Samples& samples, Sharing sharing) {
  Trains trains;
  std::vector<double> delays;
  for (const auto& [bytes, times] : samples.per_transfer_in_trains) {
    const auto single = samples.singles.find(bytes);
    if (single == samples.singles.end()) continue;
    const double k = samples.train_length.at(bytes);
    const double one = typical(single->second, sharing);
    const double in_train = typical(times, sharing);
    const double occupancy = (in_train * k - one) / (k - 1);
    // Clamp, because with noise the transfers after the first might seem to take no time.
    trains.occupancies[bytes] = std::clamp(occupancy, std::min(in_train / 2, one), one);
    delays.push_back(std::clamp(one - occupancy, 0.0, one));
  }
  // The noise of large transfers hides a delay of microseconds, so only the smaller half of the
  // sizes counts.
  if (!delays.empty()) {
    delays.resize((delays.size() + 1) / 2);
    trains.delay_us = median(delays);
  }
  return trains;
}

std::vector<LegModel::Knot> bends_of(const std::vector<LegModel::Knot>& knots) {
  std::vector<bool> keep(knots.size(), false);
  keep.front() = keep.back() = true;
  keep_bends(knots, 0, knots.size() - 1, keep);
  std::vector<LegModel::Knot> bends;
  for (size_t i = 0; i < knots.size(); ++i) {
    if (keep[i]) bends.push_back(knots[i]);
  }
  return bends;
}

}  // namespace

Result<LegModel> LegModel::fit(std::span<const LegSample> given, Sharing sharing) {
  RCUDA_ASSIGN_OR_RETURN(const Samples samples, by_size(given));
  const Trains trains = compare_trains(samples, sharing);
  std::vector<Knot> knots;
  for (const auto& [bytes, times] : samples.singles) {
    const auto shared = trains.occupancies.find(bytes);
    const bool by_train = sharing == Sharing::kTogether && shared != trains.occupancies.end();
    knots.push_back(
        {bytes, by_train ? shared->second : std::max(median(times) - trains.delay_us, 0.0)});
    if (!by_train || knots.size() < 2) continue;
    // Bandwidth does not fall as transfers grow. So the transfer takes no longer than at the
    // bandwidth of the previous knot.
    const Knot& before = knots[knots.size() - 2];
    const double growth = static_cast<double>(bytes) / static_cast<double>(before.bytes);
    knots.back().us = std::min(knots.back().us, before.us * growth);
  }
  make_monotone(knots);
  for (Knot& knot : knots) {
    const double one = typical(samples.singles.at(knot.bytes), sharing);
    knot.delay_us = sharing == Sharing::kTogether ? std::max(one - knot.us, 0.0) : trains.delay_us;
  }
  if (sharing == Sharing::kTogether) return from_knots(std::move(knots));
  return from_knots(bends_of(knots));
}

LegModel LegModel::sooner(double us) const {
  LegModel model = *this;
  for (Knot& knot : model.knots_) knot.delay_us = std::max(knot.delay_us - us, 0.0);
  return model;
}

namespace {

// Returns the upper of the two adjacent knots between which `bytes` lies. Beyond the first or the
// last knot: the upper of the nearest two.
auto right_of(const std::vector<LegModel::Knot>& knots, uint64_t bytes) {
  const auto right = std::lower_bound(
      knots.begin() + 1, knots.end(), bytes,
      [](const LegModel::Knot& knot, uint64_t value) { return knot.bytes < value; });
  return right == knots.end() ? right - 1 : right;
}

}  // namespace

double LegModel::occupancy_us(uint64_t bytes) const {
  if (knots_.empty()) return 0;
  if (bytes <= knots_.front().bytes) return knots_.front().us;
  const auto right = right_of(knots_, bytes);
  return interpolate(*(right - 1), *right, bytes);
}

double LegModel::delay_us(uint64_t bytes) const {
  if (knots_.empty()) return 0;
  if (bytes <= knots_.front().bytes) return knots_.front().delay_us;
  if (bytes >= knots_.back().bytes) return knots_.back().delay_us;
  const auto right = right_of(knots_, bytes);
  const Knot left = *(right - 1);
  return interpolate({left.bytes, left.delay_us}, {right->bytes, right->delay_us}, bytes);
}

double LegModel::peak_gbps() const {
  if (knots_.size() < 2) return 0;
  const Knot& a = knots_[knots_.size() - 2];
  const Knot& b = knots_.back();
  if (b.us <= a.us) return 0;
  return static_cast<double>(b.bytes - a.bytes) / (b.us - a.us) * 1e-3;
}

}  // namespace rcuda::p2p
