#include "p2p/plan/predict.h"

#include <algorithm>
#include <vector>

namespace rcuda::p2p {
namespace {

// The first kExactTurns * depth + kExactExtraChunks chunks are evaluated exactly. The rest is
// extrapolated: by then the transient of the recurrence is over, or its remaining error is smaller
// than the error of the measurements.
constexpr uint64_t kExactTurns = 6;
constexpr uint64_t kExactExtraChunks = 32;

class Recurrence {
 public:
  Recurrence(const Pipeline& pipeline, uint32_t depth)
      : pipeline_(pipeline), ends_(depth, 0.0), depth_(depth) {}

  // The times of a chunk on each leg.
  struct Times {
    std::array<double, Pipeline::kMaxLegs> occupancy_us{};
    std::array<double, Pipeline::kMaxLegs> delay_us{};
  };

  // Sends one more chunk through the legs. Returns the time at which it leaves the last leg.
  double advance(const Times& times) {
    const size_t place = count_ % depth_;
    double ready = count_ < depth_ ? pipeline_.setup_us : ends_[place] + pipeline_.credit_us;
    for (size_t leg = 0; leg < pipeline_.leg_count; ++leg) {
      const double begin = std::max(ready, free_[leg]);
      free_[leg] = begin + times.occupancy_us[leg];
      ready = free_[leg] + times.delay_us[leg];
      if (leg + 1 < pipeline_.leg_count) ready += pipeline_.handoff_us;
    }
    ends_[place] = ready;
    ++count_;
    return ready;
  }

  // Advances all times by `chunks` chunks of `us` each, without evaluating them (steady state).
  void skip(uint64_t chunks, double us) {
    const double shift = static_cast<double>(chunks) * us;
    for (double& end : ends_) end += shift;
    for (double& free : free_) free += shift;
    // `chunks` is a multiple of depth_, so every chunk keeps its place in ends_.
    count_ += chunks;
  }

 private:
  const Pipeline& pipeline_;
  std::vector<double> ends_;  // of the last depth_ chunks: chunk i at i % depth_
  std::array<double, Pipeline::kMaxLegs> free_{};
  uint64_t depth_;
  uint64_t count_ = 0;
};

}  // namespace

double predict_us(const Pipeline& pipeline, uint64_t bytes, Chunking chunking) {
  if (pipeline.leg_count == 0) return 0;
  const uint64_t chunk_bytes = std::max<uint64_t>(std::min(chunking.chunk_bytes, bytes), 1);
  const uint64_t depth = std::max<uint32_t>(chunking.depth, 1);
  const uint64_t full_chunks = bytes / chunk_bytes;
  const uint64_t rest_bytes = bytes % chunk_bytes;

  Recurrence::Times full;
  Recurrence::Times rest;
  for (size_t leg = 0; leg < pipeline.leg_count; ++leg) {
    const LegModel& model = *pipeline.legs[leg];
    full.occupancy_us[leg] = model.occupancy_us(chunk_bytes);
    full.delay_us[leg] = model.delay_us(chunk_bytes);
    rest.occupancy_us[leg] = model.occupancy_us(rest_bytes);
    rest.delay_us[leg] = model.delay_us(rest_bytes);
  }

  Recurrence recurrence(pipeline, static_cast<uint32_t>(depth));
  const uint64_t exact = std::min(full_chunks, kExactTurns * depth + kExactExtraChunks);
  double end = pipeline.setup_us;
  double turn_ago = end;
  for (uint64_t i = 0; i < exact; ++i) {
    end = recurrence.advance(full);
    if (i + depth == exact - 1) turn_ago = end;
  }
  if (full_chunks > exact) {
    const double per_chunk = (end - turn_ago) / static_cast<double>(depth);
    const uint64_t left = full_chunks - exact;
    const uint64_t skipped = left - left % depth;
    recurrence.skip(skipped, per_chunk);
    end += static_cast<double>(skipped) * per_chunk;
    for (uint64_t i = skipped; i < left; ++i) end = recurrence.advance(full);
  }
  if (rest_bytes > 0 || bytes == 0) end = std::max(end, recurrence.advance(rest));
  return end + pipeline.finish_us;
}

}  // namespace rcuda::p2p
