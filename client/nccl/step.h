// Step: one call of NCCL, from the program's call until the worker's answer. Plain values.
#pragma once

#include <cstddef>
#include <functional>
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
  CUstream stream = nullptr;              // as the program gave it
  std::optional<StreamRoute> route = {};  // of operations
  Ref<Communicator> communicator = {};    // that the call uses
  Ref<Communicator> created = {};
  void** handle = nullptr;  // of the program, for the new communicator
  // Called with the worker's answer of a call that has one.
  std::function<void(const Answer&)> answered = {};
};

// A call on a communicator.
Step step_on(Communicator& communicator, Verb verb);

}  // namespace rcuda::client::nccl
