// How long a pipelined copy takes, from the models of its legs.
//
// The pipeline: a chunk passes every leg in order. A leg executes one chunk at a time, in order.
// Chunk i enters the first leg only after chunk i - depth has left the last leg and the sender
// knows it. This is a max-plus recurrence. The times of the first chunks are computed exactly and
// those of the other chunks extrapolated, so the cost of a prediction does not grow with the size
// of the copy. Pure; any thread. Times are in microseconds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "p2p/plan/leg_model.h"
#include "p2p/plan/plan.h"

namespace rcuda::p2p {

struct Pipeline {
  static constexpr size_t kMaxLegs = 3;

  std::array<const LegModel*, kMaxLegs> legs{};
  size_t leg_count = 0;
  double setup_us = 0;    // before the first chunk may enter: registration, handshake
  double handoff_us = 0;  // from a chunk's delivery by one leg to its start on the next
  double credit_us = 0;   // from the end of a chunk until the sender can reuse its slot
  double finish_us = 0;   // from the last chunk's end until the copy is over at both ends

  void add_leg(const LegModel& leg) { legs[leg_count++] = &leg; }
};

double predict_us(const Pipeline& pipeline, uint64_t bytes, Chunking chunking);

}  // namespace rcuda::p2p
