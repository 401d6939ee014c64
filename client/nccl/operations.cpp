// Operations, groups, and reduction operators of the program.
#include <cstring>
#include <utility>

#include "client/nccl/communicator.h"
#include "client/nccl/forwarded.h"
#include "client/nccl/group.h"
#include "client/nccl/library.h"
#include "client/route/find_route.h"

namespace rcuda::client::nccl {
namespace {

// A null stream is the default stream of the communicator's context, as for NCCL.
int operate(Call call, void* comm, void* stream) {
  Communicator* const communicator = find<Communicator>(comm);
  if (!communicator) return refuse(kInvalidArgument);
  const Route own{communicator->session, communicator->context, communicator->device};
  const auto handle = static_cast<CUstream>(stream);
  const CudaResult<StreamRoute> route = find_stream_route(handle, own);
  if (!route) return refuse(kInvalidArgument);
  call.communicator = communicator->id;
  call.context = route->context;
  call.stream = route->id;
  Step step = step_on(*communicator, call.verb);
  step.call = call;
  step.stream = handle;
  step.route.emplace(*route);
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

}  // namespace

int ncclGroupStart() {
  start_group();
  return kSuccess;
}
int ncclGroupEnd() { return end_group(); }

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
  if (residence == kHostImmediate) {  // read before the call returns
    const auto* const first = static_cast<const std::byte*>(scalar);
    step.tail.assign(first, first + bytes);
  }
  step.answered = [operation](const Answer& answer) { *operation = answer.rank; };
  return submit_at_once(std::move(step));
}

int ncclRedOpDestroy(int operation, void* comm) {
  Communicator* const communicator = find<Communicator>(comm);
  if (!communicator) return refuse(kInvalidArgument);
  Step step = step_on(*communicator, Verb::kDestroyOperation);
  step.call.operation = operation;
  // The operations of the group that use it are made before.
  return submit(std::move(step));
}

}  // namespace rcuda::client::nccl
