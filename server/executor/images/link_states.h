// LinkStates: the options of each CUlinkState, which the driver uses until cuLinkDestroy.
// Executor thread only. Nothing blocks.
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>

#include <cuda.h>

#include "server/executor/images/jit_options.h"

namespace rcuda::server {

class LinkStates {
 public:
  void add(CUlinkState state, std::unique_ptr<JitOptions> options) {
    options_[state] = std::move(options);
  }
  // Null if the state is unknown.
  const JitOptions* find(CUlinkState state) const {
    const auto found = options_.find(state);
    return found == options_.end() ? nullptr : found->second.get();
  }
  void remove(CUlinkState state) { options_.erase(state); }

 private:
  std::unordered_map<CUlinkState, std::unique_ptr<JitOptions>> options_;
};

}  // namespace rcuda::server
