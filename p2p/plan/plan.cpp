#include "p2p/plan/plan.h"

#include <array>
#include <cstdio>

#include "common/base/units.h"

namespace rcuda::p2p {

const char* to_string(Staging staging) {
  constexpr std::array kNames{"mapped", "registered", "device", "host"};
  return kNames.at(static_cast<size_t>(staging));
}

const char* to_string(Route route) {
  constexpr std::array kNames{"shm", "tcp", "verbs", "ipc"};
  return kNames.at(static_cast<size_t>(route));
}

Route route_of(const transport::MediumTraits& traits) {
  if (traits.shares_pages) return Route::kShm;
  return traits.has_adapter ? Route::kVerbs : Route::kTcp;
}

std::string to_string(const Chunking& chunking) {
  return std::to_string(chunking.depth) + " x " + bytes_text(chunking.chunk_bytes);
}

std::string to_string(const Plan& plan) {
  std::string text = std::string(to_string(plan.staging)) + " over " + to_string(plan.route) +
                     ", " + to_string(plan.chunking) + ", ";
  if (plan.predicted_us > 0) text += microseconds_text(plan.predicted_us) + " predicted: ";
  return text + plan.reason;
}

}  // namespace rcuda::p2p
