#include "client/nccl/group.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <list>
#include <memory>
#include <thread>
#include <utility>

#include "client/mirror/mirror.h"
#include "client/nccl/library.h"
#include "client/nccl/send.h"
#include "client/route/capture.h"
#include "client/route/find_route.h"
#include "client/session/session.h"
#include "common/base/start_thread.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client::nccl {
namespace {

struct Group {
  int depth = 0;
  int error = kSuccess;
  std::vector<Step> steps;
};
thread_local Group group;

// Destroys the communicators that failed steps have created in the client. A non-blocking
// communicator whose handle the program already has stays for ncclCommGetAsyncError, until the
// program ends it.
void drop(std::vector<Step>& steps) {
  for (Step& step : steps) {
    Communicator* const created = step.created.get();
    if (created && (created->blocking || step.handle)) destroy(created);
    if (step.handle) *step.handle = nullptr;
  }
}

int take_answer(Step& step, const Answer& answer) {
  if (Communicator* const created = step.created.get()) {
    created->ranks = answer.ranks;
    created->rank = answer.rank;
    if (answer.ranks == 0) {  // ncclCommSplit with no color: no communicator
      if (step.handle) *step.handle = nullptr;
      destroy(created);
    }
  }
  return step.answered ? step.answered(answer) : kSuccess;
}

// Destroys the objects of the communicators that the steps destroy or abort. Does so even if NCCL
// returned an error, because the program's handles are then invalid, too.
void end_communicators(const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    if (step.call.verb != Verb::kDestroy && step.call.verb != Verb::kAbort) continue;
    if (Communicator* const ended = step.communicator.get()) destroy(ended);
  }
}

// Sends the host's changes of mirrored memory, before operations that may use it.
CUresult push_mirrors(const std::vector<Step>& steps) {
  if (!any_mirrored()) return CUDA_SUCCESS;
  for (const Step& step : steps) {
    if (!step.route || may_capture(step.stream)) continue;
    RCUDA_RETURN_IF_CUDA_ERROR(client::push_mirrors(*step.route));
  }
  return CUDA_SUCCESS;
}

// Batches are in a list because a batch with a call in progress must not move.
using Batches = std::list<Batch>;
using Clock = std::chrono::steady_clock;

void abort(Session* session, std::vector<Step> aborts) {
  if (aborts.empty()) return;
  Batch batch;
  batch.session = session;
  batch.steps = std::move(aborts);
  send(batch);
  (void)finish(batch, take_answer);
}

// Aborts the communicators that one worker has created, because another worker has failed.
void abort_created(const Batch& batch) {
  std::vector<Step> aborts;
  for (const Step& step : batch.steps) {
    Communicator* const created = step.created.get();
    if (created && created->blocking) aborts.push_back(step_on(*created, Verb::kAbort));
  }
  abort(batch.session, std::move(aborts));
}

// Aborts the communicators of a batch that has no answer yet, because another worker has failed.
void abort_waiting(const Batch& batch) {
  std::vector<Step> aborts;
  for (const Step& step : batch.steps) {
    if (step.call.verb == Verb::kDestroy || step.call.verb == Verb::kAbort) continue;
    for (const auto& one : {step.created, step.communicator}) {
      Communicator* const communicator = one.get();
      if (!communicator || communicator->is_aborted.exchange(true)) continue;
      *communicator->state = kRemoteError;
      aborts.push_back(step_on(*communicator, Verb::kAbort));
    }
  }
  abort(batch.session, std::move(aborts));
}

// Waits until a batch has its answer, and returns the batch. At `*patience`, aborts the
// communicators of all batches that have no answer yet.
std::vector<Batch*>::iterator next_of(std::vector<Batch*>& pending, Clock::time_point* patience) {
  // await() waits for one batch only, so the other batches are checked at this interval.
  constexpr auto kLook = std::chrono::milliseconds(100);
  for (;;) {
    const auto over = std::ranges::find_if(
        pending, [](const Batch* batch) { return await(*batch, Clock::time_point::min()); });
    if (over != pending.end()) return over;
    if (Clock::now() >= *patience) {
      *patience = Clock::time_point::max();
      for (Batch* const batch : pending) abort_waiting(*batch);
    }
    if (await(*pending.front(), Clock::now() + kLook)) return pending.begin();
  }
}

// Waits for the workers' answers. Returns the first error, or kSuccess.
int finish(Batches& batches) {
  // After the first failure, the other workers have this time to report their own errors, which say
  // more about the cause than the error of an abort.
  constexpr auto kPatience = std::chrono::seconds(2);
  int result = kSuccess;
  std::vector<Batch*> pending, made;
  for (Batch& batch : batches) pending.push_back(&batch);
  Clock::time_point patience = Clock::time_point::max();
  while (!pending.empty()) {
    const auto next =
        pending.size() == 1 && result == kSuccess ? pending.begin() : next_of(pending, &patience);
    Batch& batch = **next;
    const int one = finish(batch, take_answer);
    pending.erase(next);
    if (one == kSuccess) made.push_back(&batch);
    if (result == kSuccess && one != kSuccess) {
      result = one;
      // A simulated group leaves no communicator that waits for other ranks, so no deadline is
      // needed.
      if (batch.grouping != Grouping::kSimulated) patience = Clock::now() + kPatience;
    }
    end_communicators(batch.steps);
  }
  if (result == kSuccess) return result;
  for (const Batch* const batch : made) abort_created(*batch);
  for (Batch& batch : batches) drop(batch.steps);
  return result;
}

using State = std::shared_ptr<std::atomic<int>>;

// Returns the states of the non-blocking communicators in the steps.
std::vector<State> states_of(const std::vector<Step>& steps) {
  std::vector<State> states;
  for (const Step& step : steps) {
    if (is_immediate(step.call.verb)) continue;
    for (const auto& one : {step.communicator, step.created}) {
      const Communicator* const communicator = one.get();
      if (communicator && !communicator->blocking) states.push_back(communicator->state);
    }
  }
  return states;
}

// Sets the states that are still kInProgress. abort_waiting() has set the states of the
// communicators that it has aborted.
void set_states(const std::vector<State>& states, int result) {
  for (const State& state : states) {
    int before = kInProgress;
    state->compare_exchange_strong(before, result);
  }
}

// Starts a thread that waits for the answers and then sets the states.
int finish_later(Batches batches, std::vector<State> states) {
  for (Batch& batch : batches) {
    for (Step& step : batch.steps) step.handle = nullptr;  // valid only during the program's call
  }
  auto kept = std::make_shared<Batches>(std::move(batches));
  std::thread thread;
  const Status started =
      start_thread(&thread, [kept, states] { set_states(states, finish(*kept)); });
  if (!started.ok()) {
    const int result = finish(*kept);
    set_states(states, result);
    return result;
  }
  thread.detach();
  return kInProgress;
}

// Removes the calls on communicators that the client has aborted, because the workers no longer
// know these communicators. A call that ends such a communicator succeeds, as after an abort by the
// worker.
int take_aborted(std::vector<Step>& steps) {
  const auto ends = [](const Step& step) {
    return step.call.verb == Verb::kDestroy || step.call.verb == Verb::kAbort;
  };
  std::vector<Step> taken, others;
  for (Step& step : steps) {
    const Communicator* const used = step.communicator.get();
    (used && used->is_aborted ? taken : others).push_back(std::move(step));
  }
  steps = std::move(others);
  end_communicators(taken);
  drop(taken);
  return std::ranges::all_of(taken, ends) ? kSuccess : kRemoteError;
}

int run(std::vector<Step> steps, Grouping grouping, float* microseconds = nullptr) {
  if (const int taken = take_aborted(steps); taken != kSuccess || steps.empty()) {
    drop(steps);
    return taken;
  }
  if (const CUresult pushed = push_mirrors(steps); pushed != CUDA_SUCCESS) {
    drop(steps);
    return result_of(pushed);
  }
  std::vector<State> states = states_of(steps);
  Batches batches;
  for (Step& step : steps) {
    auto batch = std::ranges::find(batches, step.session, &Batch::session);
    if (batch == batches.end()) {
      batch = batches.emplace(batches.end());
      batch->session = step.session;
      batch->grouping = grouping;
    }
    batch->steps.push_back(std::move(step));
  }
  for (const State& state : states) *state = kInProgress;
  for (Batch& batch : batches) send(batch);
  if (!states.empty() && grouping != Grouping::kSimulated) {
    return finish_later(std::move(batches), std::move(states));
  }
  const int result = finish(batches);
  set_states(states, result);
  for (const Batch& batch : batches) {
    if (microseconds) *microseconds = std::max(*microseconds, batch.microseconds);
  }
  return result;
}

}  // namespace

void start_group() { ++group.depth; }

int end_group() {
  if (group.depth == 0) return kInvalidUsage;
  if (--group.depth > 0) return kSuccess;
  std::vector<Step> steps = std::exchange(group.steps, {});
  const int error = std::exchange(group.error, kSuccess);
  if (error != kSuccess) {
    drop(steps);
    return error;
  }
  return steps.empty() ? kSuccess : run(std::move(steps), Grouping::kGroup);
}

int simulate_group(float* microseconds) {
  if (group.depth == 0) return kInvalidUsage;
  if (--group.depth > 0) return kSuccess;
  std::vector<Step> steps = std::exchange(group.steps, {});
  int error = std::exchange(group.error, kSuccess);
  const auto executes = [](const Step& step) { return !is_operation(step.call.verb); };
  if (error == kSuccess && std::ranges::any_of(steps, executes)) error = kInvalidUsage;
  if (error != kSuccess) {
    drop(steps);
    return error;
  }
  return steps.empty() ? kSuccess : run(std::move(steps), Grouping::kSimulated, microseconds);
}

int refuse(int error) {
  if (group.depth > 0 && group.error == kSuccess) group.error = error;
  return error;
}

int submit_at_once(Step step) {
  std::vector<Step> steps;
  steps.push_back(std::move(step));
  return run(std::move(steps), Grouping::kSingle);
}

int submit(Step step) {
  if (group.depth == 0) return submit_at_once(std::move(step));
  group.steps.push_back(std::move(step));
  return kSuccess;
}

}  // namespace rcuda::client::nccl
