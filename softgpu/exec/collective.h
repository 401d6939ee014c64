// Computes warp collectives and block barriers from the operands of their participants.
//
// The warp and the block (warp.h, block.h) decide which lanes take part and when all have arrived.
// This file has only the arithmetic: shuffles, votes, matches, reductions. Pure functions over
// arrays of lanes, called by the worker that runs the block; nothing blocks or fails.
#pragma once

#include <cstdint>

#include "softgpu/exec/code.h"

namespace softgpu::exec {

enum class Collective : uint8_t {
  kSyncWarp,
  kVoteAll,
  kVoteAny,
  kVoteUni,
  kBallot,
  kShuffleUp,
  kShuffleDown,
  kShuffleButterfly,
  kShuffleIndex,
  kMatchAny32,
  kMatchAny64,
  kMatchAll32,
  kMatchAll64,
  kReduceAdd,
  kReduceMinU,
  kReduceMinS,
  kReduceMaxU,
  kReduceMaxS,
  kReduceAnd,
  kReduceOr,
  kReduceXor,
  kElect,
};

enum class BarrierReduction : uint8_t { kNone, kPopc, kAnd, kOr };

constexpr bool is_vote(Collective c) {
  return c >= Collective::kVoteAll && c <= Collective::kBallot;
}
constexpr bool is_shuffle(Collective c) {
  return c >= Collective::kShuffleUp && c <= Collective::kShuffleIndex;
}
constexpr bool reads_64_bits(Collective c) {
  return c == Collective::kMatchAny64 || c == Collective::kMatchAll64;
}
// Whether the first destination is a predicate rather than a 32-bit register.
constexpr bool gives_predicate(Collective c) {
  return c >= Collective::kVoteAll && c <= Collective::kVoteUni;
}

struct CollectiveOperands {
  alignas(64) uint64_t a[kLanes];
  alignas(64) uint32_t b[kLanes];
  alignas(64) uint32_t c[kLanes];
  uint32_t votes;  // predicate operand, a bit per lane
};
struct CollectiveResult {
  alignas(64) uint32_t value[kLanes];
  uint32_t predicate;  // second destination, or the first with gives_predicate()
};

// `lanes` take part; the results of the other lanes are undefined.
void compute(Collective kind, uint32_t lanes, const CollectiveOperands& in, CollectiveResult* out);

}  // namespace softgpu::exec
