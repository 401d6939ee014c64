#include "client/nccl/send.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <utility>

#include "client/nccl/library.h"
#include "client/route/capture.h"
#include "client/route/find_route.h"
#include "common/base/append_bytes.h"
#include "common/wire/command.h"

namespace rcuda::client::nccl {
namespace {

constexpr size_t kMostBytes =
    wire::kMaxCommandBytes - sizeof(wire::CommandHeader) - sizeof(wire::NcclCallsBody);

void append(const Step& step, std::vector<std::byte>* bytes) {
  Call call = step.call;
  call.tail_bytes = static_cast<uint32_t>(step.tail.size());
  append_bytes(bytes, std::span(&call, 1));
  append_bytes(bytes, step.tail);
  bytes->resize((bytes->size() + 7) & ~size_t{7});
}

// Returns the streams of the batch, each once.
std::vector<const StreamRoute*> streams_of(const Batch& batch) {
  std::vector<const StreamRoute*> streams;
  for (const Step& step : batch.steps) {
    if (!step.route) continue;
    const bool known = std::ranges::any_of(streams, [&](const StreamRoute* other) {
      return other->timeline == step.route->timeline && other->context == step.route->context;
    });
    if (!known) streams.push_back(&*step.route);
  }
  return streams;
}

// Whether the call has all buffers that NCCL requires.
bool has_buffers(const Call& call) {
  const bool sends = call.verb != Verb::kReceive, receives = call.verb != Verb::kSend;
  return call.count == 0 || ((!sends || call.source) && (!receives || call.target));
}

// Whether the batch can be posted: no call waits for another rank or needs an answer.
bool may_post(const Batch& batch, size_t bytes) {
  if (bytes > kMostBytes || batch.grouping == Grouping::kSimulated ||
      operations_may_wait(*batch.session) ||
      batch.session->answers(static_cast<uint16_t>(wire::Custom::kNcclPost))) {
    return false;
  }
  return std::ranges::all_of(batch.steps, [](const Step& step) {
    Communicator* const communicator = step.communicator.get();
    return is_operation(step.call.verb) && communicator && communicator->blocking &&
           !communicator->has_registrations && !communicator->has_failed &&
           communicator->is_connected(step.call) && has_buffers(step.call) &&
           !communicator->is_due_for_answer() && !may_capture(step.stream);
  });
}

wire::NcclCallsBody body_of(const Batch& batch) {
  return {0, 0, static_cast<uint32_t>(batch.steps.size()), static_cast<uint32_t>(batch.grouping),
          0};
}

void post_batch(Batch& batch, std::span<const std::byte> bytes) {
  wire::NcclPostBody body;
  static_cast<wire::NcclCallsBody&>(body) = body_of(batch);
  body.count = body.total;
  const std::vector<const StreamRoute*> streams = streams_of(batch);
  batch.is_posted = true;
  batch.sent = batch.session->post(*streams.front(), {body, bytes});
  // The command above counts in the timeline of the first stream only. NoteWork makes the timelines
  // of the other streams count it.
  for (size_t i = 1; i < streams.size() && batch.sent == CUDA_SUCCESS; ++i) {
    batch.sent = batch.session->post(*streams[i], wire::NoteWorkBody{streams[i]->id});
  }
}

// Makes the timelines of the batch's streams count its work, which is now in the streams.
void note_work(Batch& batch) {
  for (const StreamRoute* stream : streams_of(batch)) {
    (void)batch.session->post(*stream, wire::NoteWorkBody{stream->id});
  }
}

// Sends the batch as a call, whose answer finish() receives. If the batch does not fit into one
// command, NcclPart commands carry its first calls.
void begin_batch(Batch& batch) {
  static std::atomic<uint64_t> batches{0};
  const Route route = batch.session->in_context(batch.steps.front().call.context);
  std::vector<std::byte> bytes, next;
  wire::NcclCallsBody body = body_of(batch);
  for (const Step& step : batch.steps) {
    next.clear();
    append(step, &next);
    if (bytes.size() + next.size() > kMostBytes) {
      if (body.batch == 0) body.batch = ++batches;
      wire::NcclPartBody part;
      static_cast<wire::NcclCallsBody&>(part) = body;
      batch.sent = batch.session->post(route, {part, bytes});
      if (batch.sent != CUDA_SUCCESS) return;
      bytes.clear();
      body.count = 0;
    }
    bytes.insert(bytes.end(), next.begin(), next.end());
    ++body.count;
  }
  const auto answers = std::ranges::count_if(
      batch.steps, [](const Step& step) { return is_answered(step.call.verb); });
  const size_t reply_bytes = sizeof(uint64_t) + static_cast<size_t>(answers) * sizeof(Answer);
  batch.session->begin(route, {body, bytes}, {.reply_bytes = reply_bytes}, &batch.call);
}

}  // namespace

void send(Batch& batch) {
  for (const StreamRoute* stream : streams_of(batch)) pace(*stream);
  std::vector<std::byte> bytes;
  for (const Step& step : batch.steps) append(step, &bytes);
  may_post(batch, bytes.size()) ? post_batch(batch, bytes) : begin_batch(batch);
}

bool await(const Batch& batch, std::chrono::steady_clock::time_point deadline) {
  const bool is_over = batch.is_posted || batch.sent != CUDA_SUCCESS;
  return is_over || batch.session->await(batch.call, deadline);
}

int finish(Batch& batch, const std::function<int(Step&, const Answer&)>& answered) {
  // Later CUDA calls of the program return the errors of posted calls.
  if (batch.is_posted || batch.sent != CUDA_SUCCESS) return result_of(batch.sent);
  // A copy, because `answered` may make another call.
  std::vector<std::byte> copy;
  {
    Reply reply;
    const CUresult result = batch.session->finish(batch.call, &reply);
    if (result != CUDA_SUCCESS) return result_of(result);
    copy.assign(reply.body().begin(), reply.body().end());
  }
  std::span<const std::byte> body = copy;
  struct {
    int32_t result;
    float microseconds;
  } head{};
  if (body.size() < sizeof head) return kInternalError;
  std::memcpy(&head, body.data(), sizeof head);
  body = body.subspan(sizeof head);
  if (head.result != kSuccess) return head.result;
  batch.microseconds = head.microseconds;
  if (batch.grouping == Grouping::kSimulated) return kSuccess;
  int result = kSuccess;
  for (Step& step : batch.steps) {
    Communicator* const communicator = step.communicator.get();
    if (is_operation(step.call.verb) && communicator) communicator->note_connected(step.call);
    if (!is_answered(step.call.verb)) continue;
    Answer answer;
    if (body.size() < sizeof answer) return kInternalError;
    std::memcpy(&answer, body.data(), sizeof answer);
    body = body.subspan(sizeof answer);
    if (const int one = answered(step, answer); result == kSuccess) result = one;
  }
  note_work(batch);
  return result;
}

}  // namespace rcuda::client::nccl
