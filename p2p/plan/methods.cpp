#include "p2p/plan/methods.h"

#include <algorithm>

namespace rcuda::p2p {
namespace {

using Can = Capabilities;

constexpr Leg kOut = &PairModel::copy_out;
constexpr Leg kIn = &PairModel::copy_in;
constexpr Leg kGpudirect = &PairModel::gpudirect;

// The last member is the number of setup messages. ipc: 1, the Pull. registered: 4, which are Want,
// Target, the completion of the transfer at the sender, and Chunk (p2p/link/messages.h).
constexpr Method kMethods[] = {
    {Staging::kMapped, Route::kIpc, &Can::ipc, "mapped memory of the peer", {&PairModel::ipc}, 1},
    {Staging::kRegistered, Route::kVerbs, &Can::gpudirect, "GPUDirect", {kGpudirect}, 4},
    {Staging::kHost, Route::kShm, &Can::shm, "a connection over shm", {kOut, kIn}},
    {Staging::kHost,
     Route::kVerbs,
     &Can::verbs,
     "a connection over verbs",
     {kOut, &PairModel::wire_verbs, kIn}},
    {Staging::kHost,
     Route::kTcp,
     &Can::tcp,
     "a connection over tcp",
     {kOut, &PairModel::wire_tcp, kIn}},
    {Staging::kDevice,
     Route::kVerbs,
     &Can::gpudirect,
     "GPUDirect",
     {&PairModel::device_out, kGpudirect, &PairModel::device_in}},
};

}  // namespace

std::span<const Method> methods() { return kMethods; }

const Method& method_of(const Plan& plan) {
  return *std::find_if(std::begin(kMethods), std::end(kMethods), [&](const Method& method) {
    return method.staging == plan.staging && method.route == plan.route;
  });
}

const char* lacking(const Method& method, const Capabilities& can, bool contiguous) {
  if (!(can.*method.needs)) return method.need;
  const bool plain = contiguous || method.staging != Staging::kRegistered;
  return plain ? nullptr : "contiguous memory at both ends";
}

double cost_us(const Method& method, const PairModel& model, uint64_t bytes, Chunking chunking) {
  Pipeline pipeline;
  // On a wire, both hand-offs of a chunk are within a process and cost nothing, because the write
  // itself reports its arrival.
  pipeline.handoff_us = method.route == Route::kShm ? model.message_us : 0;
  pipeline.credit_us = pipeline.finish_us = model.message_us;
  pipeline.setup_us = method.setup_messages * model.message_us;
  if (method.staging == Staging::kRegistered) {
    // Both ends register at the same time.
    if (model.registration.empty()) return 0;
    pipeline.setup_us += model.registration.time_us(bytes);
  }
  for (const Leg leg : method.legs) {
    if (leg == nullptr) break;
    if ((model.*leg).empty()) return 0;
    pipeline.add_leg(model.*leg);
  }
  return predict_us(pipeline, bytes, chunking);
}

}  // namespace rcuda::p2p
