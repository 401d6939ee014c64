// LegModel: how long one leg of a copy takes (out of a GPU, over the wire, into a GPU, from GPU to
// GPU).
//
// A leg that transports n bytes is busy for occupancy_us(n), and the next transfer waits for that
// time. The leg delivers the bytes delay_us(n) later. The delay is the part of a transfer's latency
// that overlaps with the next transfers. Occupancy and delay are linear between knots and constant
// up to the first knot. Beyond the last knot, the occupancy grows with the bandwidth between the
// last two knots, and the delay is constant.
//
// Values and pure functions; any thread. Times are in microseconds, sizes in bytes, bandwidths in
// GB/s (1e9).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"

namespace rcuda::p2p {

// One timing of `transfers` transfers of `bytes` each, issued back to back. `us` is the time until
// the last transfer was delivered.
struct LegSample {
  uint64_t bytes = 0;
  uint32_t transfers = 1;
  double us = 0;
};

// How a leg executes several transfers that are in flight.
enum class Sharing : uint8_t {
  kInTurn,    // in turn (a copy engine): one transfer alone fills the leg
  kTogether,  // at the same time (sockets): only a train of transfers fills the leg
};

class LegModel {
 public:
  struct Knot {
    uint64_t bytes = 0;
    double us = 0;  // how long the leg is busy
    double delay_us = 0;
    friend bool operator==(const Knot&, const Knot&) = default;
  };

  LegModel() = default;
  // Makes the simplest model: the leg is busy for latency_us + n/gbps, and delivers delay_us later.
  static LegModel linear(double latency_us, double gbps, double delay_us = 0);
  // Makes a model from knots. kInvalidArgument for fewer than two knots, if the sizes do not
  // increase from knot to knot, if the occupancies decrease, or if a time is negative.
  static Result<LegModel> from_knots(std::vector<Knot> knots);
  // Makes a model from measurements: medians per size, made monotone, without the knots that are
  // within 2 % of a straight line. Needs single transfers of at least two sizes. Repeated samples
  // of a size improve the model, and the median ignores outliers. Trains (transfers > 1) of the
  // same sizes separate delay from occupancy.
  //
  // With kTogether the occupancy of a size comes from the trains of this size, if there are any.
  // The rest of a single transfer's time is the delay, which shows how many bytes must be in flight
  // to fill the leg. The shortest sample counts instead of the median, and no knot is dropped.
  static Result<LegModel> fit(std::span<const LegSample> samples,
                              Sharing sharing = Sharing::kInTurn);

  // Returns the same leg with every delay reduced by `us`, but not below 0.
  LegModel sooner(double us) const;

  bool empty() const { return knots_.empty(); }
  double occupancy_us(uint64_t bytes) const;
  double delay_us(uint64_t bytes) const;
  // Returns the time of one transfer on an idle leg, from issue to delivery.
  double time_us(uint64_t bytes) const { return occupancy_us(bytes) + delay_us(bytes); }
  // Returns the bandwidth between the last two knots, which large transfers approach.
  double peak_gbps() const;

  const std::vector<Knot>& knots() const { return knots_; }
  friend bool operator==(const LegModel&, const LegModel&) = default;

 private:
  std::vector<Knot> knots_;  // at least two, or none
};

}  // namespace rcuda::p2p
