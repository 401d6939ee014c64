// LinkStates: the options of each CUlinkState, which the driver uses until cuLinkDestroy or until
// the state's context ends.
// Executor thread only. Nothing blocks.
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>

#include <cuda.h>

#include "common/wire/protocol.h"
#include "server/executor/images/jit_options.h"

namespace rcuda::server {

class LinkStates {
 public:
  // `context`: the state ends with it.
  void add(CUlinkState state, wire::ObjectId context, std::unique_ptr<JitOptions> options) {
    states_[state] = {context, std::move(options)};
  }
  // Returns null if the state is unknown.
  const JitOptions* find(CUlinkState state) const {
    const auto found = states_.find(state);
    return found == states_.end() ? nullptr : found->second.options.get();
  }
  void remove(CUlinkState state) { states_.erase(state); }
  // To be called when a context has been destroyed or reset: its states have ended with it.
  void remove_all_of(wire::ObjectId context) {
    std::erase_if(states_, [&](const auto& entry) { return entry.second.context == context; });
  }

 private:
  struct State {
    wire::ObjectId context = 0;
    std::unique_ptr<JitOptions> options;
  };
  std::unordered_map<CUlinkState, State> states_;
};

}  // namespace rcuda::server
