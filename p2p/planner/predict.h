// How long a pipelined copy takes, from the models of its legs.
//
// The pipeline: chunk i passes every leg in order; a leg carries one chunk at a time, in order; a
// chunk enters the first leg only when chunk i - depth has left the last one and the word of it has
// reached the sender. That is a max-plus recurrence, evaluated exactly for the first chunks and
// extrapolated once it has become periodic, so that a prediction costs a few hundred operations
// whatever the size. Pure; any thread. Times are microseconds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "p2p/planner/leg_model.h"
#include "p2p/planner/strategy.h"

namespace rcuda::p2p {

struct Pipeline {
  static constexpr size_t kMaxLegs = 3;

  std::array<const LegModel*, kMaxLegs> legs{};
  size_t leg_count = 0;
  double setup_us = 0;    // before the first chunk may enter: registration, handshake
  double handoff_us = 0;  // from a chunk's delivery by one leg to its start on the next
  double credit_us = 0;   // from the end of a chunk to the sender using its place again
  double finish_us = 0;   // from the last chunk's end to the copy being over on both sides

  void add_leg(const LegModel& leg) { legs[leg_count++] = &leg; }
};

struct Prediction {
  double us = 0;
  size_t busiest_leg = 0;    // index into Pipeline::legs
  double busiest_share = 0;  // of the whole time, that leg's occupancy: 1 is a perfect pipeline
};

Prediction predict(const Pipeline& pipeline, uint64_t bytes, Chunking chunking);

}  // namespace rcuda::p2p
