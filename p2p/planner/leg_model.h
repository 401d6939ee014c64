// LegModel: how long one leg of a copy (out of a GPU, over the wire, into a GPU, GPU to GPU) takes.
//
// A leg that carries n bytes is busy for occupancy_us(n), during which the next transfer waits, and
// delivers delay_us(n) after that (the part of a transfer's latency that successors overlap).
// Occupancy is piecewise latency + n/bandwidth: linear between knots, beyond the last knot on with
// the last piece's bandwidth. The delay is linear between knots and stays as it is beyond them.
//
// Values; pure functions; any thread. Times are microseconds, sizes bytes, bandwidths GB/s (1e9).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"

namespace rcuda::p2p {

// One timing: `transfers` transfers of `bytes` each, issued back to back, took `us` until the last
// had been delivered.
struct LegSample {
  uint64_t bytes = 0;
  uint32_t transfers = 1;
  double us = 0;
};

// How a leg carries transfers of which several are under way.
enum class Sharing : uint8_t {
  kInTurn,    // one after the other (a copy engine): a single one tells how long it is busy
  kTogether,  // at the same time (sockets): a single one does not fill it, only trains do
};

class LegModel {
 public:
  struct Knot {
    uint64_t bytes = 0;
    double us = 0;  // occupancy
    double delay_us = 0;
    friend bool operator==(const Knot&, const Knot&) = default;
  };

  LegModel() = default;
  // The textbook leg: busy for latency_us + n/gbps, delivering delay_us later.
  static LegModel linear(double latency_us, double gbps, double delay_us = 0);
  // From knots sorted by size with non-decreasing occupancies; kInvalidArgument otherwise.
  static Result<LegModel> from_knots(std::vector<Knot> knots);
  // The same with one delay for all sizes.
  static Result<LegModel> from_knots(std::vector<Knot> knots, double delay_us);
  // From measurements: medians per size (repeats are welcome, outliers harmless), made monotone,
  // knots within 2 % of a straight line dropped. Needs single transfers of two sizes at least;
  // trains (transfers > 1) of the same sizes separate delay from occupancy. Where transfers share
  // the leg, trains alone tell the occupancy of each size, and its delay is what a single transfer
  // takes beside it: how much must be under way to fill the leg follows from that.
  static Result<LegModel> fit(std::span<const LegSample> samples,
                              Sharing sharing = Sharing::kInTurn);

  // The same leg with so much less delay, where there is that much.
  LegModel sooner(double us) const;

  bool empty() const { return knots_.empty(); }
  double occupancy_us(uint64_t bytes) const;
  double delay_us(uint64_t bytes) const;
  // One transfer on an idle leg, from issue to delivery.
  double time_us(uint64_t bytes) const { return occupancy_us(bytes) + delay_us(bytes); }
  // The bandwidth of the last piece: what large transfers approach.
  double peak_gbps() const;

  const std::vector<Knot>& knots() const { return knots_; }
  friend bool operator==(const LegModel&, const LegModel&) = default;

 private:
  std::vector<Knot> knots_;  // two at least, unless empty
};

}  // namespace rcuda::p2p
