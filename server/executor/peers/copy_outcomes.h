// CopyOutcomes: the results of copies between servers whose error a signal to a third worker
// carries (wire::kPeerSignalled).
//
// Executor thread only. What a pointer leads to is written before the signal is queued, or on the
// engine's thread, which also reads it. Nothing blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>

#include "common/base/status.h"

namespace rcuda::server {

class CopyOutcomes {
 public:
  using Outcome = std::shared_ptr<Status>;

  Outcome make(uint64_t copy) { return outcomes_[copy] = std::make_shared<Status>(); }
  // For the copy's signal; null if there is no such copy.
  Outcome take(uint64_t copy) {
    const auto found = outcomes_.find(copy);
    if (found == outcomes_.end()) return nullptr;
    Outcome outcome = std::move(found->second);
    outcomes_.erase(found);
    return outcome;
  }

 private:
  std::unordered_map<uint64_t, Outcome> outcomes_;
};

}  // namespace rcuda::server
