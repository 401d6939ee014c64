// The settings of the planner: RCUDA_P2P_STRATEGY and RCUDA_P2P_PATH.
//
// The strategies have the names under which they were published (v1 to v4b, hybrid). A strategy
// fixes staging and chunking by the size of the copy; docs/p2p.md has the table. The rest of p2p/
// knows staging, route and chunking only. Pure values and functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "common/base/status.h"
#include "common/transport/media.h"
#include "p2p/plan/plan.h"

namespace rcuda::p2p {

// The staging and chunking of copies of at most `up_to` bytes.
struct SizeRule {
  uint64_t up_to = 0;
  Staging staging = Staging::kHost;
  Chunking chunking;  // used only if has_buffers(staging)
};

// Returns the rules for staging in host memory, by the size of the copy (the strategy v4b).
std::span<const SizeRule> host_rules();

struct PlannerOptions {
  // The rules of a strategy, sizes ascending. Empty: auto, the planner chooses.
  std::span<const SizeRule> rules;
  // The rules for a copy for which the staging of `rules` is not possible. They stage in host
  // memory.
  std::span<const SizeRule> host_rules;
  std::optional<Chunking> chunking;  // replaces the chunking of the rules
  // RCUDA_P2P_PATH; none: any route. `medium`: the medium over which the workers connect for that
  // route.
  std::optional<Route> route;
  const transport::Medium* medium = nullptr;
  uint64_t staging_bytes = 64ull << 20;  // the most staging memory that one copy may use

  bool automatic() const { return rules.empty(); }
  // Whether a plan may map the peer's GPU memory.
  bool may_map() const {
    return (!route || *route == Route::kIpc) &&
           (automatic() || rules.front().staging == Staging::kMapped);
  }
};

// Parses both settings. A strategy is "auto", one of the names, or a name with a chunking
// ("v4b:256Kx8", for sweeps). A path is "auto", "ipc" or a medium. kInvalidArgument names the
// malformed setting and the valid values.
Result<PlannerOptions> parse_planner_options(std::string_view strategy, std::string_view path);

}  // namespace rcuda::p2p
