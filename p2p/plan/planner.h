// Planner: chooses the method (staging and route), chunk size and depth of a copy by its size.
//
// It is a pure function of measurements (PairModel), of the abilities of the two ends
// (Capabilities) and of the user's settings (PlannerOptions). Without a setting it chooses the plan
// with the shortest predicted time among all methods, chunk sizes and depths. If a setting cannot
// be followed (registered memory without GPUDirect, mapped memory between hosts), the copy is
// staged in host memory and the plan's reason says so.
//
// A Planner serves one direction of one pair of GPUs. Not thread-safe: the engine thread owns it.
// Nothing blocks. Errors: plan() fails only if the two ends have no route in common.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "p2p/plan/methods.h"
#include "p2p/plan/plan.h"
#include "p2p/plan/predict.h"
#include "p2p/plan/settings.h"

namespace rcuda::p2p {

class Planner {
 public:
  Planner(PlannerOptions options, Capabilities capabilities, PairModel model);

  // Returns the plan for a copy. `contiguous`: both ends are contiguous ranges, so GPUDirect
  // without staging is possible.
  Result<Plan> plan(uint64_t bytes, bool contiguous);
  // Returns the plan for a copy that directly follows another copy in its stream. The two copies
  // overlap, so the plan does not minimise the time of the single copy: if it stages in host memory
  // and no strategy is set, it has equal chunks with a low cost per byte. Otherwise as plan().
  Result<Plan> plan_in_train(uint64_t bytes, bool contiguous);
  // Returns the plan for a copy whose memory cannot be mapped or registered: staged in host memory
  // by host_rules(). `reason`: the text for Plan::reason.
  Result<Plan> plan_in_host(uint64_t bytes, std::string reason) const;

  // Returns every candidate with its prediction, best first. Over sockets the order also includes a
  // cost for each turn of the chunks in flight, which the predictions do not include. A turn is the
  // transfer of `depth` chunks, that is, of all that may be in flight at the same time.
  std::vector<Plan> candidates(uint64_t bytes, bool contiguous) const;
  // Returns the predicted time of a plan; 0 if a leg has not been measured.
  double predict_us(const Plan& plan, uint64_t bytes) const;
  // Returns the table of methods for a contiguous copy, one line each: "host over shm", a tab, and
  // the predicted time with the best chunking, the missing requirement, or "not measured". The
  // planned method has a star.
  std::string table(uint64_t bytes);

  void set_model(PairModel model);
  const PairModel& model() const { return model_; }
  const Capabilities& capabilities() const { return capabilities_; }
  const PlannerOptions& options() const { return options_; }

 private:
  const Method* find_method(Staging staging, bool contiguous, bool heed_path) const;
  Result<Plan> follow(const SizeRule& rule, const SizeRule& host_rule, uint64_t bytes,
                      bool contiguous, std::string reason) const;
  SizeRule unmeasured_rule(uint64_t bytes) const;
  Result<Plan> choose(uint64_t bytes, bool contiguous) const;

  PlannerOptions options_;
  Capabilities capabilities_;
  PairModel model_;
  // The plans that choose() made, by size class and contiguity. Planning takes 9 us in the mean and
  // 22 us at the most; the first copy of a size class waits for it.
  struct Cached {
    uint64_t bytes = 0;  // the size of the copy for which the plan was made
    Plan plan;
  };
  std::map<std::pair<unsigned, bool>, Cached> cache_;
};

}  // namespace rcuda::p2p
