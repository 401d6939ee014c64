// Planner: chooses the strategy, route, chunk size and depth of a copy by its size.
//
// It is a pure function of measurements (PairModel), of the abilities of the two ends
// (Capabilities) and of the user's settings (PlannerOptions). Policies:
//   auto   the shortest predicted time of all possible (strategy, route, chunk size, depth);
//   paper  the published hybrid with its published constants;
//   fixed  one strategy with its published constants, or with a given chunking (for sweeps).
// If a setting cannot be followed (v1 without GPUDirect, ipc between hosts), the nearest possible
// choice is used and the plan's reason says so.
//
// A Planner serves one direction of one pair of GPUs. Not thread-safe: the engine thread owns it.
// Nothing blocks. Errors: plan() fails only if the two ends have no route in common.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/transport/media.h"
#include "p2p/plan/leg_model.h"
#include "p2p/plan/predict.h"
#include "p2p/plan/strategy.h"

namespace rcuda::p2p {

// The legs of one direction, from source GPU to destination GPU. A leg that has not been measured
// is empty. Plans that need it are made by rule, without a prediction.
struct PairModel {
  LegModel copy_out;      // source GPU to pinned host memory
  LegModel copy_in;       // pinned host memory to destination GPU
  LegModel wire_tcp;      // pinned to pinned over sockets
  LegModel wire_verbs;    // pinned to pinned by RDMA write
  LegModel gpudirect;     // GPU memory to GPU memory by RDMA write
  LegModel device_out;    // within the source GPU, to its staging buffer
  LegModel device_in;     // within the destination GPU, from its staging buffer
  LegModel ipc;           // a device copy from the mapped memory of the peer
  LegModel registration;  // register and deregister one GPU range
  double message_us = 1;  // a control message, from the send to the reaction
};

// The common abilities of the two ends, as found when they connected.
struct Capabilities {
  bool shm = false;
  bool tcp = false;
  bool verbs = false;
  bool gpudirect = false;  // proven by a probe transfer; only with verbs
  bool ipc = false;
};

enum class Policy : uint8_t { kAuto, kPaper, kFixed };

struct PlannerOptions {
  Policy policy = Policy::kAuto;
  Strategy strategy = Strategy::kV4b;  // for kFixed
  std::optional<Chunking> chunking;    // for kFixed; none: the published constants
  // RCUDA_P2P_PATH; none: any route. `medium` is the one over which the workers connect for that
  // route.
  std::optional<Route> route;
  const transport::Medium* medium = nullptr;
  uint64_t window_bytes = 64ull << 20;  // the most staging memory one copy may use

  // Whether a plan may map the peer's GPU memory.
  bool may_map() const {
    return (!route || *route == Route::kIpc) &&
           (policy != Policy::kFixed || strategy == Strategy::kIpc);
  }
};

// Reads RCUDA_P2P_STRATEGY and RCUDA_P2P_PATH. A strategy is "auto", "paper" or "hybrid", a
// strategy's name ("v3b"), or a name with a chunking ("v4b:256Kx8"). A path is "auto", "ipc" or a
// medium. kInvalidArgument names the malformed setting and the valid values.
Result<PlannerOptions> parse_planner_options(std::string_view strategy, std::string_view path);

class Planner {
 public:
  Planner(PlannerOptions options, Capabilities capabilities, PairModel model);

  // The plan for a copy. `contiguous`: both ends are contiguous ranges, so GPUDirect without
  // staging is possible.
  Result<Plan> plan(uint64_t bytes, bool contiguous);
  // The plan for a copy that directly follows another one in its stream. The two overlap, so only
  // the cost of each chunk counts.
  Result<Plan> plan_in_train(uint64_t bytes, bool contiguous);

  // Makes one plan in advance, smallest sizes first, so that no copy waits for its plan. Returns
  // false if no plan is left to make. A plan costs up to 0.1 ms.
  bool prepare_one();

  // Every candidate of policy auto with its prediction, best first. Over sockets the order also
  // counts a cost for each turn of a window, which is in no prediction.
  std::vector<Plan> candidates(uint64_t bytes, bool contiguous) const;
  // The predicted time of a plan; 0 if a leg has not been measured.
  Prediction predict_plan(const Plan& plan, uint64_t bytes) const;
  // The name of a leg of the plan, such as "copy-out" or "the wire".
  const char* leg_name(const Plan& plan, size_t leg) const;

  void set_model(PairModel model);
  void set_capabilities(Capabilities capabilities);
  const PairModel& model() const { return model_; }
  const Capabilities& capabilities() const { return capabilities_; }
  const PlannerOptions& options() const { return options_; }

 private:
  bool possible(Strategy strategy, Route route, bool contiguous) const;
  Result<Plan> plan_by_rule(Strategy strategy, uint64_t bytes, bool contiguous,
                            const std::string& why) const;
  Result<Plan> plan_auto(uint64_t bytes, bool contiguous) const;
  Plan train_plan(Plan plan, uint64_t bytes) const;
  Pipeline pipeline_of(const Plan& plan, uint64_t bytes) const;

  PlannerOptions options_;
  Capabilities capabilities_;
  PairModel model_;
  // Plans of policy auto by size class and contiguity.
  struct Cached {
    uint64_t bytes = 0;  // the size of the copy for which it was made
    Plan plan;
  };
  std::map<std::pair<unsigned, bool>, Cached> cache_;
  unsigned prepared_ = 0;  // size classes below this have been planned
};

}  // namespace rcuda::p2p
