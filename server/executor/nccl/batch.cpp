#include "server/executor/nccl/batch.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <optional>
#include <thread>

namespace rcuda::server {
namespace {

using nccl::Functions;
using nccl::Verb;

// NCCL 2.22, which introduced ncclGroupSimulateEnd(). The struct has the layout of this release.
constexpr unsigned kSimulationVersion = 22200;
constexpr auto kPoll = std::chrono::microseconds(20);

nccl::Config* config_of(NcclStep& step) {
  if (!step.has_config) return nullptr;
  step.config.net_name = step.net_name.empty() ? nullptr : step.net_name.c_str();
  step.config.comm_name = step.comm_name.empty() ? nullptr : step.comm_name.c_str();
  return &step.config;
}

void* of(const NcclStep& step) { return step.handle; }
const void* source(const NcclStep& step) { return reinterpret_cast<const void*>(step.call.source); }
void* target(const NcclStep& step) { return reinterpret_cast<void*>(step.call.target); }

int init(const Functions& f, NcclStep& step) {
  const nccl::Call& call = step.call;
  const int ranks = static_cast<int>(call.count);
  if (step.ids.size() > 1) {
    return f.ncclCommInitRankScalable(&step.created->made, ranks, call.peer,
                                      static_cast<int>(step.ids.size()), step.ids.data(),
                                      config_of(step));
  }
  return f.ncclCommInitRankConfig(&step.created->made, ranks, step.ids.front(), call.peer,
                                  config_of(step));
}

// Takes the handle, for the call that frees the communicator. Waits until no other thread uses it.
void* take_handle(NcclCommunicator& communicator) {
  {
    MutexLock lock(communicator.mutex);
    communicator.made_or_failed.wait(
        lock, [&]() RCUDA_REQUIRES(communicator.mutex) { return !communicator.is_being_made; });
    communicator.is_ended = true;
  }
  while (communicator.users.load() > 0) std::this_thread::sleep_for(kPoll);
  return communicator.handle.exchange(nullptr);
}

// A communicator that was never made is aborted without an error, as in NCCL.
int abort(const Functions& f, NcclStep& step) {
  void* const handle = step.communicator ? take_handle(*step.communicator) : nullptr;
  return handle ? f.ncclCommAbort(handle) : nccl::kSuccess;
}

// Aborts the communicator instead if it is lost: ncclCommDestroy() may wait for the lost ranks.
int destroy(const Functions& f, NcclStep& step) {
  if (step.communicator && step.communicator->is_lost) return abort(f, step);
  void* const handle = step.communicator ? take_handle(*step.communicator) : nullptr;
  return handle ? f.ncclCommDestroy(handle) : nccl::kInvalidArgument;
}

int revoke(const Functions& f, NcclStep& step) {
  if (step.communicator->is_revoked.exchange(false)) return nccl::kSuccess;
  return f.ncclCommRevoke(of(step), step.call.value);
}

int suspend(const Functions& f, NcclStep& step) {
  const int result = f.ncclCommSuspend(of(step), step.call.value);
  if (result == nccl::kSuccess || result == nccl::kInProgress)
    step.communicator->is_suspended = true;
  return result;
}

int resume(const Functions& f, NcclStep& step) {
  const int result = f.ncclCommResume(of(step));
  if (result == nccl::kSuccess || result == nccl::kInProgress)
    step.communicator->is_suspended = false;
  return result;
}

int premultiplied_sum(const Functions& f, NcclStep& step) {
  constexpr int kHostImmediate = 1;
  void* const scalar = step.call.value == kHostImmediate
                           ? static_cast<void*>(step.scalar)
                           : reinterpret_cast<void*>(step.call.source);
  return f.ncclRedOpCreatePreMulSum(&step.answer.rank, scalar, step.call.datatype, step.call.value,
                                    of(step));
}

int keep_registration(NcclStep& step, int result) {
  step.answer.value = reinterpret_cast<uint64_t>(step.made);
  if (result != nccl::kSuccess || !step.made || !step.communicator) return result;
  MutexLock lock(step.communicator->mutex);
  step.communicator->registrations.insert(step.answer.value);
  return result;
}

int register_memory(const Functions& f, NcclStep& step) {
  return keep_registration(step, f.ncclCommRegister(of(step), const_cast<void*>(source(step)),
                                                    step.call.count, &step.made));
}

// Returns null if the step's communicator does not have this registration. If `ends`, removes the
// registration.
void* registration(NcclStep& step, uint64_t handle, bool ends) {
  if (!step.communicator) return nullptr;
  MutexLock lock(step.communicator->mutex);
  std::set<uint64_t>& known = step.communicator->registrations;
  if (!known.contains(handle)) return nullptr;
  if (ends) known.erase(handle);
  return reinterpret_cast<void*>(handle);
}

int deregister(int (*function)(void*, void*), NcclStep& step) {
  void* const handle = registration(step, step.call.source, true);
  return handle ? function(of(step), handle) : nccl::kInvalidArgument;
}

int create_device(const Functions& f, NcclStep& step) {
  return f.ncclDevCommCreate(of(step), step.device->requirements(), step.device->made().data());
}

void keep_device(NcclStep& step, int result) {
  if (result != nccl::kSuccess || !step.communicator) return;
  NcclCommunicator& communicator = *step.communicator;
  MutexLock lock(communicator.mutex);
  step.answer.value = ++communicator.last_device_communicator;
  communicator.device_communicators[step.answer.value] = step.device;
}

int destroy_device(const Functions& f, NcclStep& step) {
  std::shared_ptr<DeviceCommunicator> device;
  {
    MutexLock lock(step.communicator->mutex);
    auto found = step.communicator->device_communicators.extract(step.call.source);
    if (!found) return nccl::kInvalidArgument;
    device = std::move(found.mapped());
  }
  return f.ncclDevCommDestroy(of(step), device->made().data());
}

int grow(const Functions& f, NcclStep& step) {
  return f.ncclCommGrow(of(step), static_cast<int>(step.call.count),
                        step.ids.empty() ? nullptr : step.ids.data(), step.call.peer,
                        &step.created->made, config_of(step));
}

int put_signal(const Functions& f, NcclStep& step) {
  const nccl::Call& call = step.call;
  void* const window = registration(step, call.target, false);
  if (!window) return nccl::kInvalidArgument;
  return f.ncclPutSignal(source(step), call.count, call.datatype, call.peer, window,
                         step.put.offset, step.put.signal, step.put.context, step.put.flags,
                         of(step), step.stream);
}

const nccl::OperationConfig* config_of_operation(NcclStep& step) {
  step.operation_config.algorithms = step.algorithms.empty() ? nullptr : step.algorithms.c_str();
  return &step.operation_config;
}

struct Row {
  Verb verb;
  const char* name;
  bool (*exists)(const Functions& f, const NcclStep& step);
  int (*make)(const Functions& f, NcclStep& step);
};

#define RCUDA_ROW(verb, function, expression)                                                   \
  {                                                                                             \
    verb, #function, [](const Functions& f, const NcclStep&) { return f.function != nullptr; }, \
        [](const Functions& f, [[maybe_unused]] NcclStep& s) -> int { return expression; }      \
  }
// A collective, with or without a configuration. The variable arguments are those between datatype
// and comm.
#define RCUDA_COLLECTIVE(verb, function, ...)                                                    \
  {                                                                                              \
    verb, #function,                                                                             \
        [](const Functions& f, const NcclStep& s) {                                              \
          return s.has_operation_config ? f.function##Config != nullptr : f.function != nullptr; \
        },                                                                                       \
        [](const Functions& f, NcclStep& s) -> int {                                             \
          return s.has_operation_config                                                          \
                     ? f.function##Config(source(s), target(s), s.call.count,                    \
                                          s.call.datatype __VA_OPT__(, ) __VA_ARGS__, of(s),     \
                                          s.stream, config_of_operation(s))                      \
                     : f.function(source(s), target(s), s.call.count,                            \
                                  s.call.datatype __VA_OPT__(, ) __VA_ARGS__, of(s), s.stream);  \
        }                                                                                        \
  }
constexpr Row kRows[] = {
    RCUDA_ROW(Verb::kInit, ncclCommInitRankConfig, init(f, s)),
    RCUDA_ROW(Verb::kSplit, ncclCommSplit,
              f.ncclCommSplit(of(s), s.call.peer, s.call.value, &s.created->made, config_of(s))),
    RCUDA_ROW(Verb::kShrink, ncclCommShrink,
              f.ncclCommShrink(of(s), s.excluded.data(), static_cast<int>(s.excluded.size()),
                               &s.created->made, config_of(s), s.call.value)),
    RCUDA_ROW(Verb::kFinalize, ncclCommFinalize, f.ncclCommFinalize(of(s))),
    RCUDA_ROW(Verb::kDestroy, ncclCommDestroy, destroy(f, s)),
    RCUDA_ROW(Verb::kAbort, ncclCommAbort, abort(f, s)),
    RCUDA_ROW(Verb::kRevoke, ncclCommRevoke, revoke(f, s)),
    RCUDA_COLLECTIVE(Verb::kAllReduce, ncclAllReduce, s.call.operation),
    RCUDA_COLLECTIVE(Verb::kReduce, ncclReduce, s.call.operation, s.call.peer),
    RCUDA_COLLECTIVE(Verb::kBroadcast, ncclBroadcast, s.call.peer),
    RCUDA_COLLECTIVE(Verb::kAllGather, ncclAllGather),
    RCUDA_COLLECTIVE(Verb::kReduceScatter, ncclReduceScatter, s.call.operation),
    RCUDA_COLLECTIVE(Verb::kAlltoAll, ncclAlltoAll),
    RCUDA_COLLECTIVE(Verb::kGather, ncclGather, s.call.peer),
    RCUDA_COLLECTIVE(Verb::kScatter, ncclScatter, s.call.peer),
    RCUDA_ROW(Verb::kSend, ncclSend,
              f.ncclSend(source(s), s.call.count, s.call.datatype, s.call.peer, of(s), s.stream)),
    RCUDA_ROW(Verb::kReceive, ncclRecv,
              f.ncclRecv(target(s), s.call.count, s.call.datatype, s.call.peer, of(s), s.stream)),
    RCUDA_ROW(Verb::kPreMulSum, ncclRedOpCreatePreMulSum, premultiplied_sum(f, s)),
    RCUDA_ROW(Verb::kDestroyOperation, ncclRedOpDestroy,
              f.ncclRedOpDestroy(s.call.operation, of(s))),
    RCUDA_ROW(Verb::kRegister, ncclCommRegister, register_memory(f, s)),
    RCUDA_ROW(Verb::kDeregister, ncclCommDeregister, deregister(f.ncclCommDeregister, s)),
    RCUDA_ROW(Verb::kSuspend, ncclCommSuspend, suspend(f, s)),
    RCUDA_ROW(Verb::kResume, ncclCommResume, resume(f, s)),
    RCUDA_ROW(Verb::kGrow, ncclCommGrow, grow(f, s)),
    RCUDA_ROW(Verb::kRegisterWindow, ncclCommWindowRegister,
              f.ncclCommWindowRegister(of(s), const_cast<void*>(source(s)), s.call.count, &s.made,
                                       s.call.value)),
    RCUDA_ROW(Verb::kDeregisterWindow, ncclCommWindowDeregister,
              deregister(f.ncclCommWindowDeregister, s)),
    RCUDA_ROW(Verb::kCreateDevice, ncclDevCommCreate, create_device(f, s)),
    RCUDA_ROW(Verb::kDestroyDevice, ncclDevCommDestroy, destroy_device(f, s)),
    RCUDA_ROW(Verb::kPutSignal, ncclPutSignal, put_signal(f, s)),
    RCUDA_ROW(Verb::kSignal, ncclSignal,
              f.ncclSignal(s.call.peer, s.put.signal, s.put.context, s.put.flags, of(s), s.stream)),
    RCUDA_ROW(Verb::kWaitSignal, ncclWaitSignal,
              f.ncclWaitSignal(static_cast<int>(s.waits.size()), s.waits.data(), of(s), s.stream)),
};
#undef RCUDA_ROW
#undef RCUDA_COLLECTIVE

const Row* row_of(Verb verb) {
  for (const Row& row : kRows) {
    if (row.verb == verb) return &row;
  }
  return nullptr;
}

// Returns why the batch cannot be called: the client's build or the library does not fit. Returns
// an empty text if the library has all functions of the batch.
std::string find_misfit(const Functions& functions, const NcclBatch& batch) {
  for (const NcclStep& step : batch.steps) {
    const Row* const row = row_of(step.call.verb);
    if (!row) {
      return "the worker does not know the NCCL function that the client called: install the same "
             "build of rcuda on both sides";
    }
    if (!row->exists(functions, step)) return lacking_text(row->name);
    if (step.ids.size() > 1 && !functions.ncclCommInitRankScalable)
      return lacking_text("ncclCommInitRankScalable");
  }
  const bool simulates = batch.grouping == nccl::Grouping::kSimulated;
  if (simulates && !functions.ncclGroupSimulateEnd) return lacking_text("ncclGroupSimulateEnd");
  return {};
}

// Waits until a non-blocking communicator is no longer in progress.
int wait_for(const Functions& functions, NcclCommunicator& communicator) {
  for (;;) {
    {
      const NcclUse use(communicator);
      if (communicator.is_ended) return nccl::kInternalError;
      if (!use.handle()) return nccl::kSuccess;
      int state = nccl::kInProgress;
      const int result = functions.ncclCommGetAsyncError(use.handle(), &state);
      if (result != nccl::kSuccess) return result;
      if (state != nccl::kInProgress) return state;
    }
    std::this_thread::sleep_for(kPoll);
  }
}

// Publishes new communicators, so that another thread can abort them. Leaves out those that were
// aborted: their handles are invalid.
void keep_created(NcclBatch& batch) {
  for (NcclStep& step : batch.steps) {
    if (!step.created) continue;
    MutexLock lock(step.created->mutex);
    if (!step.created->is_ended) step.created->handle = step.created->made;
    step.created->is_being_made = false;
    step.created->made_or_failed.notify_all();
  }
}

// Whether all ranks of the communicator must take part.
bool needs_all_ranks(Verb verb) {
  return nccl::is_operation(verb) || verb == Verb::kSplit || verb == Verb::kGrow ||
         verb == Verb::kFinalize || verb == Verb::kRegisterWindow || verb == Verb::kCreateDevice ||
         verb == Verb::kSuspend || verb == Verb::kResume;
}

bool uses_communicator(const NcclStep& step) {
  const Verb verb = step.call.verb;
  if (verb == Verb::kGrow) return step.call.communicator != 0;  // 0: this rank is new
  return verb != Verb::kInit && verb != Verb::kAbort && verb != Verb::kDestroy;
}

int error_of_ended(const NcclStep& step) {
  const bool is_lost = step.communicator && step.communicator->is_lost;
  return is_lost ? nccl::kRemoteError : nccl::kInvalidArgument;
}

// Returns an error if the step cannot be made, otherwise kSuccess.
int check(const NcclStep& step) {
  if (needs_lost(step)) return nccl::kRemoteError;
  if (!uses_communicator(step)) return nccl::kSuccess;
  const bool is_there = step.communicator && step.communicator->handle.load();
  return is_there ? nccl::kSuccess : error_of_ended(step);
}

int check(const NcclBatch& batch) {
  for (const NcclStep& step : batch.steps) {
    if (const int result = check(step); result != nccl::kSuccess) return result;
  }
  return nccl::kSuccess;
}

// Makes the call of a step. Refuses it if the communicator has no handle, because NCCL does not
// check for a null handle in each of its calls.
int make_step(const Functions& functions, NcclStep& step) {
  const Row& row = *row_of(step.call.verb);
  if (!uses_communicator(step)) return row.make(functions, step);
  const bool is_short = nccl::is_immediate(step.call.verb);
  std::optional<NcclUse> use;
  if (is_short) use.emplace(*step.communicator);
  step.handle = is_short ? use->handle() : step.communicator->handle.load();
  return step.handle ? row.make(functions, step) : error_of_ended(step);
}

// Waits for the existing communicators of the batch, then for the new ones: NCCL makes the handle
// of a split or a shrink only when that call has ended.
int wait_for_all(const Functions& functions, NcclBatch& batch) {
  int result = nccl::kSuccess;
  for (const auto member : {&NcclStep::communicator, &NcclStep::created}) {
    for (NcclStep& step : batch.steps) {
      NcclCommunicator* const communicator = (step.*member).get();
      if (!communicator || communicator->blocking) continue;
      if (const int one = wait_for(functions, *communicator); result == nccl::kSuccess) {
        result = one;
      }
    }
    keep_created(batch);
  }
  return result;
}

// Aborts communicators whose blocking creation failed: the program gets no handle to end them.
void end_failed(const Functions& functions, NcclBatch& batch) {
  for (NcclStep& step : batch.steps) {
    if (!step.created || !step.created->blocking) continue;
    void* const handle = step.created->handle.exchange(nullptr);
    if (handle) (void)functions.ncclCommAbort(handle);
  }
}

void answer_created(const Functions& functions, NcclBatch& batch) {
  for (NcclStep& step : batch.steps) {
    if (!step.created) continue;
    const NcclUse use(*step.created);
    if (!use.handle()) continue;
    (void)functions.ncclCommCount(use.handle(), &step.answer.ranks);
    (void)functions.ncclCommUserRank(use.handle(), &step.answer.rank);
  }
}

int end_group(const Functions& functions, NcclBatch& batch) {
  if (batch.grouping != nccl::Grouping::kSimulated) return functions.ncclGroupEnd();
  nccl::SimulationInfo info;
  info.version = kSimulationVersion;
  const int result = functions.ncclGroupSimulateEnd(&info);
  batch.microseconds = info.microseconds;
  return result;
}

// Returns the aborts that end the wait of the batch. NCCL publishes the handle of a split or a
// shrink too late for an abort, but an abort of the parent also ends the new communicator.
std::vector<NcclStep> aborts_for(const NcclBatch& batch) {
  std::vector<NcclStep> aborts;
  for (const NcclStep& step : batch.steps) {
    if (!needs_lost(step)) continue;
    for (const auto& communicator : {step.communicator, step.created}) {
      const bool is_known =
          std::ranges::find(aborts, communicator, &NcclStep::communicator) != aborts.end();
      if (!communicator || is_known) continue;
      NcclStep& abort = aborts.emplace_back();
      abort.call.verb = Verb::kAbort;
      abort.context = step.context;
      abort.communicator = communicator;
    }
  }
  return aborts;
}

// Returns whether this call has revoked the communicator.
bool revoke_lost(const Functions& functions, const api::DriverTable& driver, const NcclStep& step) {
  NcclCommunicator& communicator = *step.communicator;
  const NcclUse use(communicator);
  if (!functions.ncclCommRevoke || !use.handle() || communicator.is_revoked.exchange(true) ||
      driver.cuCtxSetCurrent(step.context) != CUDA_SUCCESS) {
    return false;
  }
  const int result = functions.ncclCommRevoke(use.handle(), 0);
  communicator.is_revoked = result == nccl::kSuccess || result == nccl::kInProgress;
  return communicator.is_revoked;
}

}  // namespace

bool needs_lost(const NcclStep& step) {
  return (step.communicator && step.communicator->is_lost && needs_all_ranks(step.call.verb)) ||
         (step.created && step.created->is_lost);
}

nccl::ResultCode make(const Functions& functions, const api::DriverTable& driver,
                      NcclBatch& batch) {
  if (std::string misfit = find_misfit(functions, batch); !misfit.empty()) {
    batch.refusal = std::move(misfit);
  }
  const int refused = batch.refusal.empty() ? check(batch) : nccl::kInvalidUsage;
  if (refused != nccl::kSuccess) {
    keep_created(batch);
    return static_cast<nccl::ResultCode>(refused);
  }
  bool creates = false;
  for (const NcclStep& step : batch.steps) creates = creates || step.created;
  // In a group, NCCL makes the handle before it waits for other ranks.
  const bool groups = batch.grouping != nccl::Grouping::kSingle || creates;
  int result = groups ? functions.ncclGroupStart() : nccl::kSuccess;
  const auto note = [&result](int one) {
    if (result == nccl::kSuccess || (result == nccl::kInProgress && one != nccl::kSuccess)) {
      result = one;
    }
  };
  CUcontext current = nullptr;
  for (NcclStep& step : batch.steps) {
    if (step.context != current) {
      if (driver.cuCtxSetCurrent(step.context) != CUDA_SUCCESS) note(nccl::kCudaError);
      current = step.context;
    }
    note(make_step(functions, step));
  }
  keep_created(batch);
  if (groups) note(end_group(functions, batch));
  keep_created(batch);
  if (result == nccl::kInProgress) result = wait_for_all(functions, batch);
  if (result != nccl::kSuccess &&
      std::ranges::any_of(batch.steps, [](const NcclStep& step) { return needs_lost(step); })) {
    result = nccl::kRemoteError;
  }
  if (creates) {
    result == nccl::kSuccess ? answer_created(functions, batch) : end_failed(functions, batch);
  }
  for (NcclStep& step : batch.steps) {
    if (step.call.verb == Verb::kRegisterWindow) (void)keep_registration(step, result);
    if (step.call.verb == Verb::kCreateDevice) keep_device(step, result);
  }
  return static_cast<nccl::ResultCode>(result);
}

void end_wait(const Functions& functions, const api::DriverTable& driver, NcclBatch& batch) {
  constexpr auto kPatience = std::chrono::seconds(1), kPatienceIfRevoked = std::chrono::seconds(10);
  NcclBatch end;
  end.steps = aborts_for(batch);
  bool is_revoked = false;
  for (const NcclStep& step : batch.steps) {
    // `created` is left out: NCCL does not revoke a communicator that it is still making.
    if (!step.communicator || !needs_lost(step)) continue;
    is_revoked |= revoke_lost(functions, driver, step);
  }
  batch.is_being_revoked = false;
  const auto until =
      std::chrono::steady_clock::now() + (is_revoked ? kPatienceIfRevoked : kPatience);
  while (!batch.is_made && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!batch.is_made) (void)make(functions, driver, end);
}

}  // namespace rcuda::server
