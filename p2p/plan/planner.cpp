#include "p2p/plan/planner.h"

#include <algorithm>
#include <bit>
#include <cstdio>

namespace rcuda::p2p {
namespace {

constexpr uint64_t kSmallestChunk = uint64_t{16} << 10;
constexpr uint64_t kLargestChunk = uint64_t{16} << 20;
constexpr uint32_t kDepths[] = {2, 3, 4, 8, 16};
constexpr uint32_t kEqualParts[] = {2, 3, 4, 6, 8};
constexpr uint64_t kChunkAlignment = 4096;
// The cost of each turn of a window over sockets in addition to its legs. Threads of both hosts
// wake one another, and the time for that varies. Measured with fourteen chunkings of 1 to 64 MB
// over the loopback of two H200s' host (docs/p2p_measurements.md): 125 to 260 us.
constexpr double kTcpTurnUs = 150;
// Chunks of copies in a train. On an H200 a chunk costs 3 us in addition to the time of its bytes,
// which is 4 % of the time of 2 MB. The last chunk of the last copy overlaps with nothing, so
// chunks are at most a quarter of a copy, if that is 2 MB or more. Over sockets a chunk costs more,
// and it is also cut into pieces for the streams.
constexpr uint64_t kTrainChunk = uint64_t{2} << 20;
constexpr uint64_t kLargestTrainChunk = uint64_t{4} << 20;
constexpr uint64_t kTrainBytes = uint64_t{16} << 20;  // of one copy, in flight

// floor(log2) of a size that is not 0.
unsigned octave_of(uint64_t bytes) { return static_cast<unsigned>(std::bit_width(bytes) - 1); }

uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// Four classes per octave. A plan made for one size serves all sizes of its class.
unsigned size_class(uint64_t bytes) {
  if (bytes < 4) return static_cast<unsigned>(bytes);
  const unsigned octave = octave_of(bytes);
  return octave * 4 + static_cast<unsigned>((bytes >> (octave - 2)) & 3);
}

// The chunking of a session without measurements: four chunks in flight, of 64 KB to 4 MB each. On
// the target hardware such chunks were good for staging in host memory.
Chunking unmeasured_chunking(uint64_t bytes, uint64_t window_bytes) {
  constexpr uint32_t kDepth = 4;
  const uint64_t chunk = std::clamp(std::bit_floor(std::max<uint64_t>(bytes / 4, 1)),
                                    uint64_t{64} << 10, uint64_t{4} << 20);
  return {std::min(chunk, std::max<uint64_t>(window_bytes / kDepth, kChunkAlignment)), kDepth};
}

// Adapts a plan for copies of `planned` bytes to a copy of `bytes` in the same size class. If all
// chunks are in flight at once, the plan's choice is their number, and their size follows from it.
Plan fitted(Plan plan, uint64_t planned, uint64_t bytes) {
  Chunking& chunking = plan.chunking;
  const uint64_t chunks =
      chunking.chunk_bytes == 0 ? 1 : (planned + chunking.chunk_bytes - 1) / chunking.chunk_bytes;
  if (chunks <= 1) {
    chunking.chunk_bytes = bytes;
  } else if (chunks <= chunking.depth) {
    chunking.chunk_bytes = round_up((bytes + chunks - 1) / chunks, kChunkAlignment);
  }
  return plan;
}

// The value by which plans are compared: the prediction and the costs that it does not include.
double preference_us(const Plan& plan, uint64_t bytes) {
  if (plan.route != Route::kTcp) return plan.predicted_us;
  const uint64_t window = plan.chunking.chunk_bytes * plan.chunking.depth;
  const uint64_t turns = (bytes + window - 1) / std::max<uint64_t>(window, 1);
  return plan.predicted_us + kTcpTurnUs * static_cast<double>(std::max<uint64_t>(turns, 1) - 1);
}

}  // namespace

Result<PlannerOptions> parse_planner_options(std::string_view strategy, std::string_view path) {
  PlannerOptions options;
  if (strategy.empty() || strategy == "auto") {
    options.policy = Policy::kAuto;
  } else if (strategy == "paper" || strategy == "hybrid") {
    options.policy = Policy::kPaper;
  } else {
    const size_t colon = strategy.find(':');
    const auto named = parse_strategy(strategy.substr(0, colon));
    bool good = named.has_value();
    if (good) {
      options.policy = Policy::kFixed;
      options.strategy = *named;
    }
    if (good && colon != std::string_view::npos) {
      const std::string_view chunking = strategy.substr(colon + 1);
      const size_t times = chunking.find('x');
      const auto chunk = parse_bytes(chunking.substr(0, times));
      const auto depth = times == std::string_view::npos ? std::optional<uint64_t>()
                                                         : parse_bytes(chunking.substr(times + 1));
      good = chunk && depth && *chunk > 0 && *depth > 0 && *depth <= 1024;
      if (good) options.chunking = Chunking{*chunk, static_cast<uint32_t>(*depth)};
    }
    if (!good) {
      return Status(Code::kInvalidArgument,
                    "RCUDA_P2P_STRATEGY is \"" + std::string(strategy) +
                        "\"; it may be auto, paper, hybrid, v1, v2a, v2b, v3a, v3b, v4a, v4b or "
                        "ipc, a strategy with chunk size and depth as in v4b:256Kx8");
    }
  }
  if (path == to_string(Route::kIpc)) {  // only within a machine
    options.medium = &transport::plain_medium(transport::Reach::kThisMachine);
    options.route = Route::kIpc;
  } else if (!path.empty() && path != "auto") {
    options.medium = transport::find_medium(path);
    if (!options.medium) {
      return Status(Code::kInvalidArgument, "RCUDA_P2P_PATH is \"" + std::string(path) +
                                                "\"; it may be auto, ipc, " +
                                                transport::medium_names());
    }
    options.route = route_of(options.medium->traits);
  }
  return options;
}

Planner::Planner(PlannerOptions options, Capabilities capabilities, PairModel model)
    : options_(options), capabilities_(capabilities), model_(std::move(model)) {}

void Planner::set_model(PairModel model) {
  model_ = std::move(model);
  cache_.clear();
  prepared_ = 0;
}

void Planner::set_capabilities(Capabilities capabilities) {
  capabilities_ = capabilities;
  cache_.clear();
  prepared_ = 0;
}

bool Planner::possible(Strategy strategy, Route route, bool contiguous) const {
  switch (route) {
    case Route::kShm:
      if (!capabilities_.shm) return false;
      break;
    case Route::kTcp:
      if (!capabilities_.tcp) return false;
      break;
    case Route::kVerbs:
      if (!capabilities_.verbs) return false;
      break;
    case Route::kIpc:
      if (!capabilities_.ipc) return false;
      break;
  }
  if ((staging_of(strategy) == Staging::kMapped) != (route == Route::kIpc)) return false;
  if (staging_of(strategy) == Staging::kMapped) return true;
  if (staging_of(strategy) == Staging::kRegistered && !contiguous) return false;
  if (staging_of(strategy) != Staging::kHost) {
    return route == Route::kVerbs && capabilities_.gpudirect;
  }
  return true;
}

Pipeline Planner::pipeline_of(const Plan& plan, uint64_t bytes) const {
  Pipeline pipeline;
  // On a wire both hand-offs of a chunk are within a process, because the write itself reports its
  // arrival.
  pipeline.handoff_us = plan.route == Route::kShm ? model_.message_us : 0;
  pipeline.credit_us = model_.message_us;
  pipeline.finish_us = model_.message_us;
  if (staging_of(plan.strategy) == Staging::kMapped) {
    pipeline.add_leg(model_.ipc);
    pipeline.setup_us = model_.message_us;
    return pipeline;
  }
  if (staging_of(plan.strategy) == Staging::kRegistered) {
    pipeline.add_leg(model_.gpudirect);
    // Both ends register at the same time. The four messages: the sender requests the receiver's
    // key and gets it; the completion of the transfer comes back to the sender, which announces it.
    pipeline.setup_us = 4 * model_.message_us + model_.registration.time_us(bytes);
    return pipeline;
  }
  const bool device = staging_of(plan.strategy) == Staging::kDevice;
  pipeline.add_leg(device ? model_.device_out : model_.copy_out);
  if (device) {
    pipeline.add_leg(model_.gpudirect);
  } else if (plan.route == Route::kVerbs) {
    pipeline.add_leg(model_.wire_verbs);
  } else if (plan.route == Route::kTcp) {
    pipeline.add_leg(model_.wire_tcp);
  }
  pipeline.add_leg(device ? model_.device_in : model_.copy_in);
  return pipeline;
}

Prediction Planner::predict_plan(const Plan& plan, uint64_t bytes) const {
  const Pipeline pipeline = pipeline_of(plan, bytes);
  for (size_t leg = 0; leg < pipeline.leg_count; ++leg) {
    if (pipeline.legs[leg]->empty()) return {};
  }
  if (staging_of(plan.strategy) == Staging::kRegistered && model_.registration.empty()) return {};
  return predict(pipeline, bytes, plan.chunking);
}

const char* Planner::leg_name(const Plan& plan, size_t leg) const {
  if (staging_of(plan.strategy) == Staging::kMapped) return "the mapped copy";
  if (staging_of(plan.strategy) == Staging::kRegistered) return "GPUDirect";
  const bool device = staging_of(plan.strategy) == Staging::kDevice;
  if (leg == 0) return device ? "the copy within the source" : "copy-out";
  if (leg == 1 && plan.route != Route::kShm) return device ? "GPUDirect" : "the wire";
  return device ? "the copy within the destination" : "copy-in";
}

std::vector<Plan> Planner::candidates(uint64_t bytes, bool contiguous) const {
  std::vector<Chunking> chunkings;
  const uint64_t window = options_.window_bytes;
  if (bytes <= window) chunkings.push_back({bytes, 1});
  for (uint64_t chunk = kSmallestChunk; chunk <= kLargestChunk && chunk < bytes; chunk *= 2) {
    const uint64_t chunks = (bytes + chunk - 1) / chunk;
    for (uint32_t depth : kDepths) {
      if (chunk * depth > window) continue;
      chunkings.push_back({chunk, depth});
      if (depth >= chunks) break;  // more depth than chunks
    }
  }
  for (uint32_t parts : kEqualParts) {
    const uint64_t chunk = round_up(bytes / parts, kChunkAlignment);
    if (chunk < kSmallestChunk || chunk >= bytes || chunk * parts > window) continue;
    if (std::has_single_bit(chunk)) continue;  // already in the list
    chunkings.push_back({chunk, parts});
  }

  std::vector<Plan> plans;
  const auto consider = [&](Strategy strategy, Route route, Chunking chunking) {
    if (!possible(strategy, route, contiguous)) return;
    if (options_.route && *options_.route != route) return;
    Plan plan{strategy, route, chunking, 0, {}};
    plan.predicted_us = predict_plan(plan, bytes).us;
    if (plan.predicted_us <= 0) return;
    plans.push_back(std::move(plan));
  };
  consider(Strategy::kIpc, Route::kIpc, {bytes, 1});
  consider(Strategy::kV1, Route::kVerbs, {bytes, 1});
  for (const Chunking& chunking : chunkings) {
    const bool single = chunking.depth == 1;
    for (Route route : {Route::kShm, Route::kVerbs, Route::kTcp}) {
      consider(single ? Strategy::kV2b : Strategy::kV4b, route, chunking);
    }
    consider(single ? Strategy::kV2a : Strategy::kV4a, Route::kVerbs, chunking);
  }
  // Among equals the first one considered wins: it has fewer buffers and less memory.
  std::stable_sort(plans.begin(), plans.end(), [bytes](const Plan& a, const Plan& b) {
    return preference_us(a, bytes) < preference_us(b, bytes);
  });
  return plans;
}

Result<Plan> Planner::plan_by_rule(Strategy strategy, uint64_t bytes, bool contiguous,
                                   const std::string& why) const {
  Plan plan;
  plan.strategy = strategy;
  plan.reason = why;
  std::vector<Route> routes{Route::kShm, Route::kVerbs, Route::kTcp};
  if (staging_of(strategy) != Staging::kHost) routes = {Route::kVerbs};
  if (staging_of(strategy) == Staging::kMapped) routes = {Route::kIpc};
  bool wish_dropped = false;
  const auto find_route = [&](bool heed_wish) -> std::optional<Route> {
    for (Route route : routes) {
      if (heed_wish && options_.route && *options_.route != route) continue;
      if (possible(plan.strategy, route, contiguous)) return route;
    }
    return std::nullopt;
  };
  auto route = find_route(true);
  if (!route) {
    const Strategy wanted = plan.strategy;
    plan.strategy = host_counterpart(wanted);
    routes = {Route::kShm, Route::kVerbs, Route::kTcp};
    if (plan.strategy != wanted) {
      const char* lacking = staging_of(wanted) == Staging::kMapped ? "mapped memory of the peer"
                            : staging_of(wanted) == Staging::kRegistered && capabilities_.gpudirect
                                ? "plain ranges at both ends"
                                : "GPUDirect";
      plan.reason += std::string("; ") + to_string(wanted) + " needs " + lacking + ", which is " +
                     "not to be had here, so " + to_string(plan.strategy) + " stands in";
    }
    route = find_route(true);
    if (!route) {
      route = find_route(false);
      wish_dropped = route.has_value();
    }
  }
  if (!route) {
    return Status(Code::kUnavailable, "the two workers have no route for copies in common");
  }
  plan.route = *route;
  if (wish_dropped) {
    plan.reason += std::string("; RCUDA_P2P_PATH=") + to_string(*options_.route) +
                   " cannot be had, so " + to_string(*route) + " stands in";
  }
  plan.chunking = options_.policy == Policy::kAuto
                      ? unmeasured_chunking(bytes, options_.window_bytes)
                  : options_.policy == Policy::kFixed && options_.chunking
                      ? *options_.chunking
                      : paper_chunking(plan.strategy, bytes);
  if (!has_buffers(staging_of(plan.strategy))) plan.chunking = {bytes, 1};
  plan.predicted_us = predict_plan(plan, bytes).us;
  return plan;
}

// Equal chunks, and enough of them to keep the staging memory in use all the time.
Plan Planner::train_plan(Plan plan, uint64_t bytes) const {
  if (staging_of(plan.strategy) != Staging::kHost) return plan;
  const uint64_t best = plan.route == Route::kTcp
                            ? kLargestTrainChunk
                            : std::clamp(bytes / 4, kTrainChunk, kLargestTrainChunk);
  const auto depth = static_cast<uint32_t>(kTrainBytes / best);
  const uint64_t most = std::clamp(options_.window_bytes / 2 / depth, kSmallestChunk, best);
  const uint64_t chunks = std::max<uint64_t>((bytes + most - 1) / most, 1);
  plan.strategy = chunks == 1 ? Strategy::kV2b : Strategy::kV4b;
  plan.chunking = chunks == 1
                      ? Chunking{bytes, 1}
                      : Chunking{round_up((bytes + chunks - 1) / chunks, kChunkAlignment), depth};
  plan.reason = "in a train, which overlaps whole copies";
  return plan;
}

Result<Plan> Planner::plan_auto(uint64_t bytes, bool contiguous) const {
  std::vector<Plan> plans = candidates(bytes, contiguous);
  if (plans.empty()) {
    const bool ipc = possible(Strategy::kIpc, Route::kIpc, contiguous) &&
                     (!options_.route || *options_.route == Route::kIpc);
    return plan_by_rule(ipc ? Strategy::kIpc : Strategy::kV4b, bytes, contiguous,
                        "by rule, as the legs have not been measured");
  }
  Plan best = plans.front();
  const Prediction prediction = predict_plan(best, bytes);
  char text[192];
  const int used = std::snprintf(
      text, sizeof text, "least of %zu candidates, %s busy %.0f %% of it", plans.size(),
      leg_name(best, prediction.busiest_leg), prediction.busiest_share * 100);
  // The best plan with another strategy or route says more than a neighbour of the best plan.
  const auto other = std::find_if(plans.begin(), plans.end(), [&](const Plan& plan) {
    return plan.strategy != best.strategy || plan.route != best.route;
  });
  if (other != plans.end()) {
    std::snprintf(text + used, sizeof text - static_cast<size_t>(used), "; %s over %s +%.0f %%",
                  to_string(other->strategy), to_string(other->route),
                  (other->predicted_us / best.predicted_us - 1) * 100);
  }
  best.reason = text;
  return best;
}

Result<Plan> Planner::plan(uint64_t bytes, bool contiguous) {
  switch (options_.policy) {
    case Policy::kPaper:
      return plan_by_rule(paper_hybrid(bytes), bytes, contiguous,
                          bytes <= kPaperHybridThresholdBytes
                              ? "published hybrid, up to 200 KB in GPU buffers"
                              : "published hybrid, above 200 KB in host buffers");
    case Policy::kFixed:
      return plan_by_rule(options_.strategy, bytes, contiguous,
                          options_.chunking ? "as asked" : "as asked, published constants");
    case Policy::kAuto:
      break;
  }
  const auto key = std::make_pair(size_class(bytes), contiguous);
  if (const auto found = cache_.find(key); found != cache_.end()) {
    return fitted(found->second.plan, found->second.bytes, bytes);
  }
  Result<Plan> fresh = plan_auto(bytes, contiguous);
  if (fresh) cache_[key] = {bytes, *fresh};
  return fresh;
}

Result<Plan> Planner::plan_in_train(uint64_t bytes, bool contiguous) {
  Result<Plan> alone = plan(bytes, contiguous);
  if (!alone || options_.policy != Policy::kAuto) return alone;
  return train_plan(*std::move(alone), bytes);
}

bool Planner::prepare_one() {
  constexpr uint64_t kLargestPrepared = uint64_t{1} << 30;
  if (options_.policy != Policy::kAuto) return false;
  // The smallest size of a class. Classes below 4 are sizes in bytes, the others are quarters of
  // octaves.
  const unsigned octave = prepared_ / 4;
  const uint64_t bytes = prepared_ < 4 ? prepared_ : (uint64_t{4} + prepared_ % 4) << octave >> 2;
  if (bytes > kLargestPrepared) return false;
  ++prepared_;
  if (prepared_ >= 4 && octave < 2) return true;  // these classes have no sizes
  (void)plan(bytes, true);
  return true;
}

}  // namespace rcuda::p2p
