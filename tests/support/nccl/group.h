// Groups. A group is the calls of a thread since its outermost ncclGroupStart.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tests/support/nccl/communicator.h"

namespace testnccl {

using CommunicatorPtr = std::shared_ptr<Communicator>;

// Handles are numbers, not addresses. A number is used once.
ncclComm_t add_handle(const CommunicatorPtr& communicator);
CommunicatorPtr find(ncclComm_t handle);
CommunicatorPtr take(ncclComm_t handle);  // the handle is invalid afterwards

// An error that belongs to no communicator. refuse() records it for the calling thread and returns
// `result`; last_refusal() returns the text of the thread's last such error.
ncclResult_t refuse(ncclResult_t result, const std::string& text);
const std::string& last_refusal();

// Returns the communicator for a call of this thread; the thread uses it until its group ends.
// Returns nullptr and sets *result if the thread may not use the communicator.
CommunicatorPtr use(ncclComm_t handle, ncclResult_t* result, bool also_failed = false);

// A call that makes or ends communicators. It blocks, and runs at the same time as the other such
// calls of its group.
struct Setup {
  std::function<ncclResult_t()> run;
  CommunicatorPtr made;  // nullptr if none
  ncclComm_t* handle;    // the program's variable with the handle of `made`
};

void add(Setup setup);
void add(const CommunicatorPtr& communicator, Request request);
void add(const CommunicatorPtr& communicator, Leg leg);

void begin_group();
// At the end of an outermost group, runs the calls of the group; drops them if `run` is false.
ncclResult_t end_group(bool run = true);

// Runs a call of the API, as a part of the thread's group or as a group of its own.
ncclResult_t as_group(const std::function<ncclResult_t()>& call);

}  // namespace testnccl
