// Operations, groups, and reduction operators of the program.
//
// The files of this folder: first those in which calls begin, then those that every call uses:
//
//   library         chooses the servers' NCCL or the program's own; finds the context of a call
//   local_library   finds the program's own libnccl.so.2
//   operations      operations, groups and reduction operators: makes a Step of each call
//   create          creation and end of communicators, and queries about them (communicator.h)
//   memory          memory of NCCL, and its registration
//   device_api      the host side of NCCL's device API
//   parameters      NCCL's parameters
//   ask             questions to a worker's NCCL
//   step            a Step: one call of NCCL, from the program's call until the worker's answer
//   group           records the Steps of a group, and makes a batch of them for each worker
//   send            sends a batch to its worker, and takes the answers
#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "client/nccl/communicator.h"
#include "client/nccl/forwarded.h"
#include "client/nccl/group.h"
#include "client/nccl/library.h"
#include "client/objects/named.h"
#include "client/objects/stream.h"
#include "client/route/find_route.h"
#include "common/base/append_bytes.h"
#include "common/base/first_report.h"
#include "common/base/log.h"

namespace rcuda::client::nccl {
namespace {

// Checks the arguments of a call as NCCL does.
bool is_valid(const Communicator& communicator, const Call& call) {
  const Verb verb = call.verb;
  if (verb == Verb::kSignal || verb == Verb::kWaitSignal) return true;
  if (bytes_of_type(call.datatype) == 0) return false;
  const bool reduces =
      verb == Verb::kAllReduce || verb == Verb::kReduce || verb == Verb::kReduceScatter;
  if (reduces && !communicator.has_operator(call.operation)) return false;
  return call.peer >= 0 && call.peer < communicator.ranks;
}

// Makes a step of an operation and submits it. A default stream means the default stream of the
// communicator's context, as in NCCL.
int operate(Call call, void* comm, void* stream, std::vector<std::byte> tail = {}) {
  Communicator* const communicator = find<Communicator>(comm);
  if (!communicator || !is_valid(*communicator, call)) return refuse(kInvalidArgument);
  // The client may have aborted the worker's communicator (group.h).
  if (communicator->state->load() == kRemoteError) return refuse(kRemoteError);
  const Route own{communicator->session, communicator->context, communicator->device};
  const auto handle = static_cast<CUstream>(stream);
  const bool is_default = !handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
  std::optional<InContext> in_its_context;
  if (is_default) in_its_context.emplace(own);
  const CudaResult<StreamRoute> route = find_stream_route(handle, own);
  if (!route) return refuse(kInvalidArgument);
  if (route->stream && route->stream->device != own.device) return refuse(kInvalidUsage);
  call.communicator = communicator->id;
  call.context = route->context;
  call.stream = route->id;
  Step step = step_on(*communicator, call.verb);
  step.call = call;
  step.tail = std::move(tail);
  step.stream = handle;
  step.route.emplace(*route);
  const WorkQueue* const queue =
      route->stream ? static_cast<const WorkQueue*>(route->stream) : context_of(*route);
  if (queue) step.timeline = queue->timeline;
  return submit(std::move(step));
}

Call call_of(Verb verb, const void* source, const void* target, size_t count, int datatype,
             int operation = 0, int peer = 0) {
  Call call;
  call.verb = verb;
  call.source = reinterpret_cast<uint64_t>(source);
  call.target = reinterpret_cast<uint64_t>(target);
  call.count = count;
  call.datatype = datatype;
  call.operation = operation;
  call.peer = peer;
  return call;
}

// Copies the members of the program's configuration that this library knows. Returns an
// ncclResult_t.
int read_config(const OperationConfig& given, const Session* session, OperationTail* tail) {
  const size_t known = std::min(given.size, sizeof given);
  if (known < offsetof(OperationConfig, extensions) || given.magic != kConfigMagic) {
    return kInvalidArgument;
  }
  OperationConfig& config = tail->config;
  std::memcpy(static_cast<void*>(&config), &given, known);
  config.size = sizeof config;
  if (config.extensions) {
    if (first_report("ncclCollConfig_t::ext")) {
      RCUDA_ERROR(
          "rcuda does not support ncclCollConfig_t::ext: the call returns ncclInvalidUsage "
          "(docs/nccl.md)");
    }
    return kInvalidUsage;
  }
  if (config.algorithms) {
    tail->algorithm_bytes =
        static_cast<uint32_t>(std::min(std::strlen(config.algorithms), kMostNameBytes));
  }
  if (!config.launch_event) return kSuccess;
  auto* const event = find<Event>(config.launch_event);
  if (!event || event->session != session) return kInvalidArgument;
  event->state.leave_to_worker();  // the operation records the event
  tail->event = event->id;
  return kSuccess;
}

int operate_with(const OperationConfig* config, Call call, void* comm, void* stream) {
  const Communicator* const communicator = find<Communicator>(comm);
  if (!config || !communicator) return operate(call, comm, stream);
  OperationTail head;
  if (const int read = read_config(*config, communicator->session, &head); read != kSuccess) {
    return refuse(read);
  }
  std::vector<std::byte> tail;
  const char* const algorithms = std::exchange(head.config.algorithms, nullptr);
  head.config.launch_event = nullptr;
  append_bytes(&tail, std::span(&head, 1));
  append_bytes(&tail, std::span(algorithms, head.algorithm_bytes));
  return operate(call, comm, stream, std::move(tail));
}

std::vector<std::byte> put_tail(size_t offset, int signal, int context, unsigned flags) {
  PutTail put;
  put.offset = offset;
  put.signal = signal;
  put.context = context;
  put.flags = flags;
  std::vector<std::byte> tail;
  append_bytes(&tail, std::span(&put, 1));
  return tail;
}

}  // namespace

int ncclGroupStart() {
  start_group();
  return kSuccess;
}
int ncclGroupEnd() { return end_group(); }
// Stores the estimate of the slowest server.
int ncclGroupSimulateEnd(void* estimate) {
  SimulationInfo info;
  if (estimate) {
    std::memcpy(static_cast<void*>(&info), estimate, offsetof(SimulationInfo, microseconds));
    const bool is_valid = info.size >= sizeof info && info.magic == SimulationInfo::kMagic;
    if (!is_valid) (void)refuse(kInvalidArgument);
  }
  const int result = simulate_group(&info.microseconds);
  if (!estimate || result != kSuccess) return result;
  std::memcpy(static_cast<std::byte*>(estimate) + offsetof(SimulationInfo, microseconds),
              &info.microseconds, sizeof info.microseconds);
  return kSuccess;
}

int ncclAllReduce(const void* source, void* target, size_t count, int datatype, int operation,
                  void* comm, void* stream) {
  return operate(call_of(Verb::kAllReduce, source, target, count, datatype, operation), comm,
                 stream);
}
int ncclReduce(const void* source, void* target, size_t count, int datatype, int operation,
               int root, void* comm, void* stream) {
  return operate(call_of(Verb::kReduce, source, target, count, datatype, operation, root), comm,
                 stream);
}
int ncclBroadcast(const void* source, void* target, size_t count, int datatype, int root,
                  void* comm, void* stream) {
  return operate(call_of(Verb::kBroadcast, source, target, count, datatype, 0, root), comm, stream);
}
int ncclBcast(void* buffer, size_t count, int datatype, int root, void* comm, void* stream) {
  return ncclBroadcast(buffer, buffer, count, datatype, root, comm, stream);
}
int ncclAllGather(const void* source, void* target, size_t count, int datatype, void* comm,
                  void* stream) {
  return operate(call_of(Verb::kAllGather, source, target, count, datatype), comm, stream);
}
int ncclReduceScatter(const void* source, void* target, size_t count, int datatype, int operation,
                      void* comm, void* stream) {
  return operate(call_of(Verb::kReduceScatter, source, target, count, datatype, operation), comm,
                 stream);
}
int ncclAlltoAll(const void* source, void* target, size_t count, int datatype, void* comm,
                 void* stream) {
  return operate(call_of(Verb::kAlltoAll, source, target, count, datatype), comm, stream);
}
int ncclGather(const void* source, void* target, size_t count, int datatype, int root, void* comm,
               void* stream) {
  return operate(call_of(Verb::kGather, source, target, count, datatype, 0, root), comm, stream);
}
int ncclScatter(const void* source, void* target, size_t count, int datatype, int root, void* comm,
                void* stream) {
  return operate(call_of(Verb::kScatter, source, target, count, datatype, 0, root), comm, stream);
}
int ncclSend(const void* source, size_t count, int datatype, int peer, void* comm, void* stream) {
  return operate(call_of(Verb::kSend, source, nullptr, count, datatype, 0, peer), comm, stream);
}
int ncclRecv(void* target, size_t count, int datatype, int peer, void* comm, void* stream) {
  return operate(call_of(Verb::kReceive, nullptr, target, count, datatype, 0, peer), comm, stream);
}

int ncclAllReduceConfig(const void* source, void* target, size_t count, int datatype, int operation,
                        void* comm, void* stream, const OperationConfig* config) {
  return operate_with(config, call_of(Verb::kAllReduce, source, target, count, datatype, operation),
                      comm, stream);
}
int ncclReduceConfig(const void* source, void* target, size_t count, int datatype, int operation,
                     int root, void* comm, void* stream, const OperationConfig* config) {
  return operate_with(config,
                      call_of(Verb::kReduce, source, target, count, datatype, operation, root),
                      comm, stream);
}
int ncclBroadcastConfig(const void* source, void* target, size_t count, int datatype, int root,
                        void* comm, void* stream, const OperationConfig* config) {
  return operate_with(config, call_of(Verb::kBroadcast, source, target, count, datatype, 0, root),
                      comm, stream);
}
int ncclReduceScatterConfig(const void* source, void* target, size_t count, int datatype,
                            int operation, void* comm, void* stream,
                            const OperationConfig* config) {
  return operate_with(config,
                      call_of(Verb::kReduceScatter, source, target, count, datatype, operation),
                      comm, stream);
}
int ncclAllGatherConfig(const void* source, void* target, size_t count, int datatype, void* comm,
                        void* stream, const OperationConfig* config) {
  return operate_with(config, call_of(Verb::kAllGather, source, target, count, datatype), comm,
                      stream);
}
int ncclAlltoAllConfig(const void* source, void* target, size_t count, int datatype, void* comm,
                       void* stream, const OperationConfig* config) {
  return operate_with(config, call_of(Verb::kAlltoAll, source, target, count, datatype), comm,
                      stream);
}
int ncclGatherConfig(const void* source, void* target, size_t count, int datatype, int root,
                     void* comm, void* stream, const OperationConfig* config) {
  return operate_with(config, call_of(Verb::kGather, source, target, count, datatype, 0, root),
                      comm, stream);
}
int ncclScatterConfig(const void* source, void* target, size_t count, int datatype, int root,
                      void* comm, void* stream, const OperationConfig* config) {
  return operate_with(config, call_of(Verb::kScatter, source, target, count, datatype, 0, root),
                      comm, stream);
}

int ncclPutSignal(const void* source, size_t count, int datatype, int peer, void* window,
                  size_t offset, int signal, int context, unsigned flags, void* comm,
                  void* stream) {
  return operate(call_of(Verb::kPutSignal, source, window, count, datatype, 0, peer), comm, stream,
                 put_tail(offset, signal, context, flags));
}
int ncclSignal(int peer, int signal, int context, unsigned flags, void* comm, void* stream) {
  return operate(call_of(Verb::kSignal, nullptr, nullptr, 0, 0, 0, peer), comm, stream,
                 put_tail(0, signal, context, flags));
}
int ncclWaitSignal(int count, SignalWait* waits, void* comm, void* stream) {
  if (count < 1 || !waits) return refuse(kInvalidArgument);
  std::vector<std::byte> tail;
  append_bytes(&tail, std::span(waits, static_cast<size_t>(count)));
  return operate(call_of(Verb::kWaitSignal, nullptr, nullptr, 0, 0), comm, stream, std::move(tail));
}

int ncclRedOpCreatePreMulSum(int* operation, void* scalar, int datatype, int residence,
                             void* comm) {
  Communicator* const communicator = find<Communicator>(comm);
  const size_t bytes = bytes_of_type(datatype);
  if (!communicator || !operation || !scalar || bytes == 0) return refuse(kInvalidArgument);
  Step step = step_on(*communicator, Verb::kPreMulSum);
  step.call.source = reinterpret_cast<uint64_t>(scalar);
  step.call.datatype = datatype;
  step.call.value = residence;
  constexpr int kHostImmediate = 1;
  if (residence == kHostImmediate) {  // NCCL reads the scalar during this call
    const auto* const first = static_cast<const std::byte*>(scalar);
    step.tail.assign(first, first + bytes);
  }
  step.answered = [operation, ref = step.communicator](const Answer& answer) {
    *operation = answer.rank;
    if (Communicator* const its = ref.get()) its->add_operator(answer.rank);
    return kSuccess;
  };
  return submit_at_once(std::move(step));
}

int ncclRedOpDestroy(int operation, void* comm) {
  Communicator* const communicator = find<Communicator>(comm);
  if (!communicator) return refuse(kInvalidArgument);
  Step step = step_on(*communicator, Verb::kDestroyOperation);
  step.call.operation = operation;
  communicator->remove_operator(operation);
  // In a group, the operations that use the operator precede this step.
  return submit(std::move(step));
}

}  // namespace rcuda::client::nccl
