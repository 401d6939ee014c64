#include "p2p/plan/planner.h"

#include <algorithm>
#include <bit>
#include <cstdio>

#include "common/base/units.h"

namespace rcuda::p2p {
namespace {

constexpr uint64_t kSmallestChunk = uint64_t{16} << 10;
constexpr uint64_t kLargestChunk = uint64_t{16} << 20;
constexpr uint32_t kDepths[] = {2, 3, 4, 8, 16};
constexpr uint32_t kEqualParts[] = {2, 3, 4, 6, 8};
constexpr uint64_t kChunkAlignment = 4096;
// The cost of a turn over sockets, in addition to the legs. A turn is the transfer of `depth`
// chunks, that is, of all that may be in flight at the same time. Threads of both hosts wake one
// another, and the time for that varies. Measured with fourteen chunkings of 1 to 64 MB over the
// loopback of a host with two H200 (docs/p2p_measurements.md): 125 to 260 us.
constexpr double kTcpTurnUs = 150;
// The largest chunk of a copy in a train: a quarter of the copy, within these two limits; over
// sockets always kLargestTrainChunk. The last chunk of the last copy overlaps with nothing, so it
// should be small. But on an H200 a chunk costs 3 us in addition to the time of its bytes (38 us
// for 2 MB at 55 GB/s). Over sockets a chunk costs more, and the Link cuts it into pieces for its
// sockets.
constexpr uint64_t kTrainChunk = uint64_t{2} << 20;
constexpr uint64_t kLargestTrainChunk = uint64_t{4} << 20;
constexpr uint64_t kTrainBytes = uint64_t{16} << 20;  // bytes of one copy in flight

// floor(log2) of a size that is not 0.
unsigned octave_of(uint64_t bytes) { return static_cast<unsigned>(std::bit_width(bytes) - 1); }

uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// Four classes per octave. A plan made for one size serves all sizes of its class.
unsigned size_class(uint64_t bytes) {
  if (bytes < 4) return static_cast<unsigned>(bytes);
  const unsigned octave = octave_of(bytes);
  return octave * 4 + static_cast<unsigned>((bytes >> (octave - 2)) & 3);
}

// Returns the chunkings that the planner compares.
std::vector<Chunking> chunkings_of(uint64_t bytes, uint64_t staging_bytes) {
  std::vector<Chunking> chunkings;
  if (bytes <= staging_bytes) chunkings.push_back({bytes, 1});
  for (uint64_t chunk = kSmallestChunk; chunk <= kLargestChunk && chunk < bytes; chunk *= 2) {
    const uint64_t chunks = (bytes + chunk - 1) / chunk;
    for (uint32_t depth : kDepths) {
      if (chunk * depth > staging_bytes) continue;
      chunkings.push_back({chunk, depth});
      if (depth >= chunks) break;  // a larger depth changes nothing
    }
  }
  for (uint32_t parts : kEqualParts) {
    const uint64_t chunk = round_up(bytes / parts, kChunkAlignment);
    if (chunk < kSmallestChunk || chunk >= bytes || chunk * parts > staging_bytes) continue;
    if (std::has_single_bit(chunk)) continue;  // the first loop has added it
    chunkings.push_back({chunk, parts});
  }
  return chunkings;
}

// Adapts a plan for copies of `planned` bytes to a copy of `bytes` in the same size class. If all
// chunks are in flight at the same time, the plan fixes their number, and their size follows from
// it.
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

// Returns the value by which plans are compared: the predicted time and, over sockets, the cost of
// the plan's turns.
double preference_us(const Plan& plan, uint64_t bytes) {
  if (plan.route != Route::kTcp) return plan.predicted_us;
  const uint64_t in_flight = plan.chunking.chunk_bytes * plan.chunking.depth;
  const uint64_t turns = (bytes + in_flight - 1) / std::max<uint64_t>(in_flight, 1);
  return plan.predicted_us + kTcpTurnUs * static_cast<double>(std::max<uint64_t>(turns, 1) - 1);
}

const SizeRule& rule_for(std::span<const SizeRule> rules, uint64_t bytes) {
  return *std::find_if(rules.begin(), rules.end() - 1,
                       [&](const SizeRule& rule) { return bytes <= rule.up_to; });
}

std::string name_of(const Method& method) {
  return std::string(to_string(method.staging)) + " over " + to_string(method.route);
}

bool is_of(const Plan& plan, const Method& method) {
  return plan.staging == method.staging && plan.route == method.route;
}

}  // namespace

Planner::Planner(PlannerOptions options, Capabilities capabilities, PairModel model)
    : options_(options), capabilities_(capabilities), model_(std::move(model)) {}

void Planner::set_model(PairModel model) {
  model_ = std::move(model);
  cache_.clear();
}

double Planner::predict_us(const Plan& plan, uint64_t bytes) const {
  return cost_us(method_of(plan), model_, bytes, plan.chunking);
}

std::vector<Plan> Planner::candidates(uint64_t bytes, bool contiguous) const {
  std::vector<Plan> plans;
  const auto consider = [&](const Method& method, Chunking chunking) {
    if (options_.route && *options_.route != method.route) return;
    if (lacking(method, capabilities_, contiguous) != nullptr) return;
    const double us = cost_us(method, model_, bytes, chunking);
    if (us > 0) plans.push_back({method.staging, method.route, chunking, us, {}});
  };
  for (const Method& method : methods()) {
    if (!has_buffers(method.staging)) consider(method, {bytes, 1});
  }
  for (const Chunking& chunking : chunkings_of(bytes, options_.staging_bytes)) {
    for (const Method& method : methods()) {
      if (has_buffers(method.staging)) consider(method, chunking);
    }
  }
  // Of candidates with equal cost, the first is chosen, which needs fewer buffers and less memory.
  std::stable_sort(plans.begin(), plans.end(), [bytes](const Plan& a, const Plan& b) {
    return preference_us(a, bytes) < preference_us(b, bytes);
  });
  return plans;
}

// The rule for copies before the legs have been measured: staging in host memory with four chunks
// in flight, each about a quarter of the copy, of 64 KB to 4 MB.
SizeRule Planner::unmeasured_rule(uint64_t bytes) const {
  constexpr uint32_t kDepth = 4;
  const uint64_t chunk = std::clamp(std::bit_floor(std::max<uint64_t>(bytes / 4, 1)),
                                    uint64_t{64} << 10, uint64_t{4} << 20);
  const uint64_t most = std::max<uint64_t>(options_.staging_bytes / kDepth, kChunkAlignment);
  return {bytes, Staging::kHost, {std::min(chunk, most), kDepth}};
}

// Returns the first possible method with this staging, or null. `heed_path`: only methods of the
// route that RCUDA_P2P_PATH names.
const Method* Planner::find_method(Staging staging, bool contiguous, bool heed_path) const {
  for (const Method& method : methods()) {
    if (method.staging != staging || lacking(method, capabilities_, contiguous)) continue;
    if (!heed_path || !options_.route || *options_.route == method.route) return &method;
  }
  return nullptr;
}

// Returns the plan by `rule`, or in host memory by `host_rule` if the rule's staging is not
// possible.
Result<Plan> Planner::follow(const SizeRule& rule, const SizeRule& host_rule, uint64_t bytes,
                             bool contiguous, std::string reason) const {
  const Method* method = find_method(rule.staging, contiguous, true);
  const SizeRule& used = method ? rule : host_rule;
  if (!method && rule.staging != Staging::kHost) {
    const auto wanted = std::find_if(methods().begin(), methods().end(), [&](const Method& each) {
      return each.staging == rule.staging;
    });
    const char* const need = lacking(*wanted, capabilities_, contiguous);
    reason += "; " + name_of(*wanted) + " needs " + (need ? need : "another RCUDA_P2P_PATH") +
              ", so host memory is used";
    method = find_method(Staging::kHost, contiguous, true);
  }
  if (!method) {
    method = find_method(Staging::kHost, contiguous, false);
    if (!method) {
      return Status(
          Code::kUnavailable,
          "no path for peer copies works on both servers: their logs say why shm, tcp and verbs "
          "do not work");
    }
    reason += std::string("; RCUDA_P2P_PATH=") + to_string(*options_.route) +
              " is not possible, so " + to_string(method->route) + " is used";
  }
  Plan plan{method->staging, method->route, {bytes, 1}, 0, std::move(reason)};
  if (has_buffers(plan.staging)) plan.chunking = options_.chunking.value_or(used.chunking);
  plan.predicted_us = predict_us(plan, bytes);
  return plan;
}

Result<Plan> Planner::plan_in_host(uint64_t bytes, std::string reason) const {
  const SizeRule& rule = rule_for(host_rules(), bytes);
  return follow(rule, rule, bytes, true, std::move(reason));
}

// Returns the best candidate, or a plan by rule if the legs have not been measured.
Result<Plan> Planner::choose(uint64_t bytes, bool contiguous) const {
  std::vector<Plan> plans = candidates(bytes, contiguous);
  if (plans.empty()) {  // the legs have not been measured
    const SizeRule host = unmeasured_rule(bytes);
    SizeRule rule = host;
    if (find_method(Staging::kMapped, contiguous, true)) rule.staging = Staging::kMapped;
    return follow(rule, host, bytes, contiguous,
                  "by a fixed rule, as no leg has been measured yet");
  }
  Plan best = plans.front();
  best.reason = "fastest of " + std::to_string(plans.size()) + " candidates";
  return best;
}

Result<Plan> Planner::plan(uint64_t bytes, bool contiguous) {
  if (!options_.automatic()) {
    return follow(rule_for(options_.rules, bytes), rule_for(options_.host_rules, bytes), bytes,
                  contiguous, "by RCUDA_P2P_STRATEGY");
  }
  const auto key = std::make_pair(size_class(bytes), contiguous);
  if (const auto found = cache_.find(key); found != cache_.end()) {
    return fitted(found->second.plan, found->second.bytes, bytes);
  }
  Result<Plan> fresh = choose(bytes, contiguous);
  if (fresh) cache_[key] = {bytes, *fresh};
  return fresh;
}

// If the copy is staged in host memory and no strategy is set, plans equal chunks of at most
// kLargestTrainChunk, with at most about kTrainBytes in flight.
Result<Plan> Planner::plan_in_train(uint64_t bytes, bool contiguous) {
  Result<Plan> plan = this->plan(bytes, contiguous);
  if (!plan || !options_.automatic() || plan->staging != Staging::kHost) return plan;
  const uint64_t best = plan->route == Route::kTcp
                            ? kLargestTrainChunk
                            : std::clamp(bytes / 4, kTrainChunk, kLargestTrainChunk);
  const auto depth = static_cast<uint32_t>(kTrainBytes / best);
  const uint64_t most = std::clamp(options_.staging_bytes / 2 / depth, kSmallestChunk, best);
  const uint64_t chunks = std::max<uint64_t>((bytes + most - 1) / most, 1);
  plan->chunking = chunks == 1
                       ? Chunking{bytes, 1}
                       : Chunking{round_up((bytes + chunks - 1) / chunks, kChunkAlignment), depth};
  plan->reason = "in a train, which overlaps whole copies";
  return plan;
}

std::string Planner::table(uint64_t bytes) {
  const Result<Plan> planned = plan(bytes, true);
  const std::vector<Plan> plans = candidates(bytes, true);
  std::string text;
  for (const Method& method : methods()) {
    const bool chosen = planned && is_of(*planned, method);
    auto best = std::find_if(plans.begin(), plans.end(),
                             [&](const Plan& plan) { return is_of(plan, method); });
    const Plan* const shown = chosen ? &*planned : best != plans.end() ? &*best : nullptr;
    text += name_of(method) + "\t";
    if (const char* const need = lacking(method, capabilities_, true)) {
      text += std::string("needs ") + need;
    } else if (!shown) {
      text += "not measured";
    } else {
      text += microseconds_text(shown->predicted_us) + (chosen ? " *, " : ", ") +
              to_string(shown->chunking);
    }
    text += "\n";
  }
  return text;
}

}  // namespace rcuda::p2p
