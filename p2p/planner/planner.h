// Planner: which strategy, route, chunk size and depth a copy of a given size should use.
//
// A pure function of measurements (PairModel), of what the two ends can do (Capabilities) and of
// the user's wishes (PlannerOptions). Policies:
//   auto   the least predicted time over every possible (strategy, route, chunk size, depth);
//   paper  the published hybrid with its published constants;
//   fixed  one strategy with its published constants, or with a given chunking (for sweeps).
// Where a wish cannot be met (v1 without GPUDirect, ipc between hosts) the nearest thing that works
// is used and the plan's reason says so.
//
// One Planner serves one direction of one pair of GPUs. Not thread-safe: the engine thread owns it.
// Nothing blocks. Errors: plan() fails only when the two ends have no route in common.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/transport/media.h"
#include "p2p/planner/leg_model.h"
#include "p2p/planner/predict.h"
#include "p2p/planner/strategy.h"

namespace rcuda::p2p {

// The legs of one direction, source GPU to destination GPU. A leg that has not been measured is
// empty; plans that need it are then made by rule and not by prediction.
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
  double message_us = 1;  // a control message, from sending to being acted on
};

// What the two ends can do together, as found when they connected.
struct Capabilities {
  bool shm = false;
  bool tcp = false;
  bool verbs = false;
  bool gpudirect = false;  // proven by a probe transfer; only ever with verbs
  bool ipc = false;
};

enum class Policy : uint8_t { kAuto, kPaper, kFixed };

struct PlannerOptions {
  Policy policy = Policy::kAuto;
  Strategy strategy = Strategy::kV4b;  // of kFixed
  std::optional<Chunking> chunking;    // of kFixed; the published constants otherwise
  // RCUDA_P2P_PATH; any otherwise. `medium` is what the workers connect over for that route.
  std::optional<Route> route;
  const transport::Medium* medium = nullptr;
  uint64_t window_bytes = 64ull << 20;  // staging memory one copy may fill at most

  // Whether a plan may be one that maps the peer's GPU memory.
  bool may_map() const {
    return (!route || *route == Route::kIpc) &&
           (policy != Policy::kFixed || strategy == Strategy::kIpc);
  }
};

// Reads RCUDA_P2P_STRATEGY: "auto", "paper" or "hybrid", a strategy ("v3b"), or a strategy with its
// chunking ("v4b:256Kx8"); and RCUDA_P2P_PATH: "auto", "ipc" or a medium. kInvalidArgument names
// the malformed setting and what it may be.
Result<PlannerOptions> parse_planner_options(std::string_view strategy, std::string_view path);

class Planner {
 public:
  Planner(PlannerOptions options, Capabilities capabilities, PairModel model);

  // The plan for a copy. `contiguous`: both ends are plain ranges, so GPUDirect without staging is
  // possible.
  Result<Plan> plan(uint64_t bytes, bool contiguous);
  // The same for a copy that is right behind another one in its stream. The two overlap, so only
  // the cost of each chunk counts.
  Result<Plan> plan_in_train(uint64_t bytes, bool contiguous);

  // Makes one plan ahead, the smallest sizes first, so that no copy waits for its own; false when
  // there is none left to make. A plan costs up to a millisecond.
  bool prepare_one();

  // Every candidate of policy auto with its prediction, best first; over
  // sockets what a window's turns cost counts as well, which is in no prediction.
  std::vector<Plan> candidates(uint64_t bytes, bool contiguous) const;
  // The time the model gives a plan; 0 where a leg is not measured.
  Prediction predict_plan(const Plan& plan, uint64_t bytes) const;
  // "copy-out", "wire", ... : the name of a leg of such a plan.
  const char* leg_name(const Plan& plan, size_t leg) const;

  void set_model(PairModel model);
  void set_capabilities(Capabilities capabilities);
  const PairModel& model() const { return model_; }
  const Capabilities& capabilities() const { return capabilities_; }
  const PlannerOptions& options() const { return options_; }

 private:
  bool possible(Strategy strategy, Route route, bool contiguous) const;
  std::optional<Route> staging_route() const;  // best route for staging in host memory
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
    uint64_t bytes = 0;  // of the copy it was made for
    Plan plan;
  };
  std::map<std::pair<unsigned, bool>, Cached> cache_;
  unsigned prepared_ = 0;  // size classes below this have been planned
};

}  // namespace rcuda::p2p
