// Operations in streams.
#include <algorithm>

#include "tests/support/nccl/communicator.h"

namespace testnccl {
namespace {

constexpr size_t kHead = 64;  // bytes of staging before the data: the word at 0, the factor at 8

// Whether this is a default stream (legacy or per thread): these have numbers instead of handles.
bool is_default(CUstream stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace

ncclResult_t Communicator::cuda(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return ncclSuccess;
  const char* name = "?";
  (void)cuGetErrorName(result, &name);
  return fail(ncclUnhandledCudaError, std::string(call) + " returns " + name, false);
}

ncclResult_t Communicator::check_stream(CUstream stream) {
  if (is_default(stream)) return ncclSuccess;
  CUcontext owner = nullptr;
  if (const ncclResult_t result = cuda(cuStreamGetCtx(stream, &owner), "cuStreamGetCtx");
      result != ncclSuccess)
    return result;
  return owner == context_
             ? ncclSuccess
             : fail(ncclInvalidUsage, "the stream belongs to another context than the communicator",
                    false);
}

ncclResult_t Communicator::check_buffer(CUdeviceptr buffer, const char* name) {
  int type = 0;
  if (cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, buffer) == CUDA_SUCCESS)
    return ncclSuccess;
  return fail(ncclInvalidArgument, std::string(name) + " is not memory that the device reaches",
              false);
}

Operation* Communicator::make_operation(Kind kind, Bytes head, size_t sent, size_t received) {
  const size_t capacity = kHead + sent + received;
  Operation* operation = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(free_.begin(), free_.end(), [&](const Operation* each) {
      return each->capacity >= capacity;
    });
    if (found != free_.end()) {
      operation = *found;
      free_.erase(found);
    }
  }
  if (!operation) {
    // Operations of graphs live as long as the process: this library does not learn when a graph
    // ends.
    static std::mutex all_mutex;
    static auto* all = new std::vector<std::unique_ptr<Operation>>;
    auto made = std::make_unique<Operation>();
    made->capacity = capacity;
    void* staging = nullptr;
    if (cuda(cuMemHostAlloc(&staging, capacity, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc") !=
        ncclSuccess)
      return nullptr;
    made->staging = static_cast<std::byte*>(staging);
    const std::lock_guard lock(all_mutex);
    operation = all->emplace_back(std::move(made)).get();
  }
  operation->owner = shared_from_this();
  operation->kind = kind;
  operation->head = std::move(head);
  operation->factor.reset();
  operation->sent = sent;
  operation->received = received;
  operation->word().store(0);
  return operation;
}

// Puts the operation into the stream, after the communicator's operations in other streams.
ncclResult_t Communicator::place(Operation* operation, CUstream stream,
                                 const std::function<CUresult()>& copy_out,
                                 const std::function<CUresult()>& copy_in) {
  auto start_function = [](void* data) {
    auto* started = static_cast<Operation*>(data);
    started->owner->start(started);
  };
  auto finish_function = [](void* data) {
    auto* finished = static_cast<Operation*>(data);
    finished->owner->finish(finished);
  };
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t capture = 0;
  CUresult result =
      cuStreamGetCaptureInfo(stream, &status, &capture, nullptr, nullptr, nullptr, nullptr);
  const bool captured = result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
  if (!captured) capture = 0;
  if (!captured) {
    const std::lock_guard lock(mutex_);
    ++in_streams_;
  }
  auto then = [&](auto&& step) {
    if (result == CUDA_SUCCESS) result = step();
  };
  if (has_last_ && last_stream_ != stream && last_capture_ == capture) {
    then([&] { return cuStreamWaitEvent(stream, last_event_, 0); });
  }
  then(copy_out);
  then([&] { return cuLaunchHostFunc(stream, start_function, operation); });
  then([&] {
    return cuStreamWaitValue32(stream, address_of(operation->staging), 1, CU_STREAM_WAIT_VALUE_EQ);
  });
  then(copy_in);
  then([&] { return cuEventRecord(last_event_, stream); });
  if (!captured) then([&] { return cuLaunchHostFunc(stream, finish_function, operation); });
  has_last_ = true;
  last_stream_ = stream;
  last_capture_ = capture;
  if (result != CUDA_SUCCESS && !captured) {
    const std::lock_guard lock(mutex_);
    --in_streams_;
  }
  return cuda(result, "adding an operation to the stream");
}

ncclResult_t Communicator::enqueue(const Request& request) {
  const Current current(context_);
  const size_t sent = bytes_sent(request.call, rank_, ranks_),
               received = bytes_received(request.call, rank_, ranks_);
  ncclResult_t result = check_stream(request.stream);
  if (result == ncclSuccess && sent > 0)
    result = check_buffer(request.sent, "the buffer to send from");
  if (result == ncclSuccess && received > 0)
    result = check_buffer(request.received, "the buffer to receive into");
  if (result != ncclSuccess) return result;
  Bytes head;
  put(head, request.call);
  const Bytes list = orders(true);
  head.insert(head.end(), list.begin(), list.end());
  Operation* operation = make_operation(Kind::kCollective, std::move(head), sent, received);
  if (!operation) return ncclUnhandledCudaError;
  operation->factor = request.factor;
  operation->type = request.call.type;
  const CUdeviceptr scalar = request.factor ? request.factor->device : 0;
  return place(
      operation, request.stream,
      [&] {
        CUresult copied = CUDA_SUCCESS;
        if (scalar)
          copied = cuMemcpyAsync(address_of(operation->staging + 8), scalar,
                                 size_of(request.call.type), request.stream);
        if (copied != CUDA_SUCCESS || sent == 0) return copied;
        return cuMemcpyAsync(address_of(operation->out()), request.sent, sent, request.stream);
      },
      [&] {
        return received == 0 ? CUDA_SUCCESS
                             : cuMemcpyAsync(request.received, address_of(operation->in()),
                                             received, request.stream);
      });
}

ncclResult_t Communicator::enqueue(const std::vector<Leg>& legs) {
  const Current current(context_);
  Bytes head;
  put(head, static_cast<uint64_t>(legs.size()));
  size_t sent = 0, received = 0;
  for (const Leg& leg : legs) {
    put(head, leg.transfer);
    const size_t bytes = leg.transfer.count * size_of(leg.transfer.type);
    (leg.transfer.sends ? sent : received) += bytes;
    ncclResult_t result = check_stream(leg.stream);
    if (result == ncclSuccess && bytes > 0) result = check_buffer(leg.buffer, "a buffer");
    if (result != ncclSuccess) return result;
  }
  Operation* operation = make_operation(Kind::kPointToPoint, std::move(head), sent, received);
  if (!operation) return ncclUnhandledCudaError;
  const CUstream stream = legs.front().stream;
  std::set<CUstream> others;
  for (const Leg& leg : legs) {
    if (leg.stream != stream) others.insert(leg.stream);
  }
  auto copy = [&](bool sends, std::byte* at) {
    for (const Leg& leg : legs) {
      const size_t bytes = leg.transfer.count * size_of(leg.transfer.type);
      if ((leg.transfer.sends != 0) != sends || bytes == 0) continue;
      const CUdeviceptr host = address_of(at);
      const CUresult result =
          cuMemcpyAsync(sends ? host : leg.buffer, sends ? leg.buffer : host, bytes, stream);
      if (result != CUDA_SUCCESS) return result;
      at += bytes;
    }
    return CUDA_SUCCESS;
  };
  // A group's streams wait for each other.
  CUevent joined = nullptr;
  if (!others.empty()) (void)cuEventCreate(&joined, CU_EVENT_DISABLE_TIMING);
  for (CUstream other : others) {
    (void)cuEventRecord(joined, other);
    (void)cuStreamWaitEvent(stream, joined, 0);
  }
  const ncclResult_t result = place(
      operation, stream, [&] { return copy(true, operation->out()); },
      [&] { return copy(false, operation->in()); });
  for (CUstream other : others) (void)cuStreamWaitEvent(other, last_event_, 0);
  if (joined) (void)cuEventDestroy(joined);
  return result;
}

void Communicator::start(Operation* operation) {
  const std::lock_guard lock(mutex_);
  operation->word().store(ended_ ? 1 : 0);
  if (ended_) return;
  started_.push_back(operation);
  changed_.notify_all();
}

void Communicator::finish(Operation* operation) {
  const std::lock_guard lock(mutex_);
  free_.push_back(operation);
  --in_streams_;
  changed_.notify_all();
}

// Runs on the communicator's thread, until the communicator has ended and no operation is left.
void Communicator::progress() {
  for (;;) {
    Operation* operation = nullptr;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !started_.empty() || ended_; });
      if (started_.empty()) return;
      operation = started_.front();
      started_.pop_front();
    }
    run(*operation);
    operation->word().store(1, std::memory_order_release);
  }
}

void Communicator::run(Operation& operation) {
  if (ended_ || (state() != ncclSuccess && state() != ncclInProgress)) return;
  Bytes body = operation.head;
  Bytes payload(operation.out(), operation.out() + operation.sent);
  if (operation.factor) {
    const bool device = operation.factor->device != 0;
    scale(operation.type, payload, device ? operation.staging + 8 : operation.factor->value.data());
  }
  body.insert(body.end(), payload.begin(), payload.end());
  Message answer;
  (void)lane(Lane::kStreams)->send(operation.kind, body);
  if (receive(Lane::kStreams, &answer) && answer.body.size() == operation.received) {
    std::copy(answer.body.begin(), answer.body.end(), operation.in());
  }
}

}  // namespace testnccl
