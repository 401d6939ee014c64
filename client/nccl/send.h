// Sends the calls of a group to one worker, and receives the answers (NcclCalls and NcclPost of
// api/table/commands.toml).
//
// Threads: any. Blocking: send() while the ring or a stream's queue is full; finish() until the
// worker has answered.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "client/nccl/step.h"
#include "client/session/session.h"

namespace rcuda::client::nccl {

// The calls of a group for one worker.
struct Batch {
  Session* session = nullptr;
  Grouping grouping{};
  std::vector<Step> steps;
  Session::PendingCall call;
  bool is_posted = false;
  CUresult sent = CUDA_SUCCESS;
  float microseconds = 0;  // of a simulated group; set by finish()
};

void send(Batch& batch);
// Waits until the worker has answered, or until the deadline. Returns whether finish() can return
// without waiting.
bool await(const Batch& batch, std::chrono::steady_clock::time_point deadline);
// Returns an ncclResult_t. `answered`: called with each answer; returns the ncclResult_t of the
// call.
int finish(Batch& batch, const std::function<int(Step&, const Answer&)>& answered);

}  // namespace rcuda::client::nccl
