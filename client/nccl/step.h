// Step: one call of NCCL, from the program's call until the worker's answer. Plain values.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <cuda.h>

#include "client/nccl/communicator.h"
#include "client/session/route.h"

namespace rcuda::client::nccl {

struct Step {
  Call call;
  std::vector<std::byte> tail;
  Session* session = nullptr;
  CUstream stream = nullptr;                // the program's argument
  std::optional<StreamRoute> route = {};    // set for operations only
  std::shared_ptr<Timeline> timeline = {};  // keeps the timeline alive if the stream ends
  Ref<Communicator> communicator = {};      // on which the call works
  Ref<Communicator> created = {};
  void** handle = nullptr;  // the program's variable for the new communicator
  // Called with the worker's answer, if the call has one. Returns the ncclResult_t of the call.
  std::function<int(const Answer&)> answered = {};
};

// Makes the step of a call on a communicator.
Step step_on(Communicator& communicator, Verb verb);

}  // namespace rcuda::client::nccl
