// Corrections: by how much copies of a plan really take longer or shorter than predicted.
//
// Per (strategy, route, chunking, octave of size) the last ratios observed / predicted are kept;
// their median, clamped to [1/kLimit, kLimit], is that plan's factor once there are kEnough of
// them: one slow copy moves nothing, and no run of them moves a prediction further than the limit.
// A plan never tried takes the median factor of its family (strategy and route) in that octave, so
// that a model which errs alike for all its chunkings does not make every untried one look better.
// Not thread-safe. Pure arithmetic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>

#include "p2p/planner/strategy.h"

namespace rcuda::p2p {

class Corrections {
 public:
  static constexpr double kLimit = 4.0;
  static constexpr size_t kEnough = 3;
  static constexpr size_t kKept = 9;

  void observe(const Plan& plan, uint64_t bytes, double observed_us, double predicted_us);
  double factor(const Plan& plan, uint64_t bytes) const;
  // Whether it is known by now how long the plan's copies of these sizes take.
  bool known(const Plan& plan, uint64_t bytes) const;
  // How many plans of these sizes that is known of.
  size_t known_plans(uint64_t bytes) const;
  // Grows whenever a factor of these sizes moved by more than 2 %.
  uint64_t version(uint64_t bytes) const;
  void clear();

 private:
  struct Ratios {
    std::array<double, kKept> last{};
    size_t count = 0;  // ever observed
    double factor = 1.0;
  };
  using Family = std::tuple<unsigned, Strategy, Route>;
  using Chunks = std::pair<uint64_t, uint32_t>;

  const Ratios* find(const Plan& plan, uint64_t bytes) const;

  std::map<Family, std::map<Chunks, Ratios>> families_;
  std::map<unsigned, uint64_t> versions_;
};

// floor(log2), 0 for 0: sizes of one octave share corrections.
unsigned octave_of(uint64_t bytes);

}  // namespace rcuda::p2p
