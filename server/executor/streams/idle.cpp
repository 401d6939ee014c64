#include "server/executor/streams/idle.h"

#include <algorithm>
#include <utility>

#include "server/executor/streams/capture.h"

namespace rcuda::server {

std::vector<SessionStream> IdleCheck::streams_to_check(ContextState& context) {
  // The legacy stream always counts: functions without a stream parameter use it.
  std::vector<SessionStream> streams = {
      {nullptr, &context, &context.legacy_stream, 0, kLegacyKey | context.id}};
  objects_.of(wire::Kind::kStream).for_each([&](wire::ObjectId id, Object& object) {
    if (object.context == context.id && object.last_use > object.done_use) {
      streams.push_back({static_cast<CUstream>(object.handle), &context, &object, id, object.key});
    }
  });
  return streams;
}

void IdleCheck::stream_departs(CUstream handle) {
  SessionStream stream;
  const wire::ObjectId id = objects_.of(wire::Kind::kStream).id_of(handle);
  if (objects_.use_stream(id, &stream) != CUDA_SUCCESS || !stream.id ||
      query_stream(driver_, stream.handle) != CUDA_ERROR_NOT_READY) {
    return;
  }
  (void)any_departed(*stream.context);
  auto departed = std::make_shared<Departed>();
  stream.context->departed.push_back(departed);
  completions_.add(stream, [departed](CUresult result) {
    departed->done = true;
    for (const WhenDone& waiter : std::exchange(departed->waiters, {})) waiter(result);
  });
}

bool IdleCheck::any_departed(ContextState& context) {
  std::erase_if(context.departed, [](const auto& departed) { return departed->done; });
  return !context.departed.empty();
}

size_t IdleCheck::count_busy_streams(CUdevice device, bool ask) {
  size_t busy = 0;
  const auto count = [&](ContextState& context) {
    if (context.device != device) return;
    const std::vector<SessionStream> streams = streams_to_check(context);
    if (context.legacy_stream.last_use > context.legacy_stream.done_use) ++busy;
    for (auto stream = streams.begin() + 1; stream != streams.end(); ++stream) {
      const CUresult result = ask ? query_stream(driver_, stream->handle) : CUDA_ERROR_NOT_READY;
      if (result == CUDA_SUCCESS) stream->object->done_use = stream->object->last_use;
      if (result == CUDA_ERROR_NOT_READY) ++busy;
    }
    if (any_departed(context)) busy += context.departed.size();
  };
  objects_.for_each_context(count);
  return busy;
}

bool IdleCheck::known_idle(ContextState& context) {
  constexpr size_t kMostAsked = 4;
  // Querying the driver takes longer than any other step of a small command. So no query is made if
  // no work was queued since the last result.
  if (context.idle_at == work_.all()) return true;
  ContextState* const before = objects_.current_context();
  const std::vector<SessionStream> streams = streams_to_check(context);
  if (streams.size() > 1 + kMostAsked || any_departed(context) ||
      objects_.make_current(context.id) != CUDA_SUCCESS) {
    return false;
  }
  // The legacy stream is queried only if all other streams are idle, and so none is in capture: the
  // query would invalidate a capture.
  bool idle = std::all_of(streams.begin() + 1, streams.end(), [this](const SessionStream& stream) {
    return query_stream(driver_, stream.handle) == CUDA_SUCCESS;
  });
  idle = idle && driver_.cuStreamQuery(nullptr) == CUDA_SUCCESS;
  if (idle) {
    for (const SessionStream& stream : streams) stream.object->done_use = stream.object->last_use;
    context.idle_at = work_.all();
  }
  if (before) objects_.make_current(before->id);
  return idle;
}

bool IdleCheck::known_idle() {
  bool idle = true;
  objects_.for_each_context([&](ContextState& context) { idle = idle && known_idle(context); });
  return idle;
}

bool IdleCheck::any_work() {
  ContextState* const before = objects_.current_context();
  bool work = false;
  const auto look = [&](ContextState& context) {
    if (work || context.idle_at == work_.all() || objects_.make_current(context.id) != CUDA_SUCCESS)
      return;
    bool captures = false;
    const std::vector<SessionStream> streams = streams_to_check(context);
    for (auto stream = streams.begin() + 1; stream != streams.end(); ++stream) {
      const CUresult result = query_stream(driver_, stream->handle);
      work = work || result == CUDA_ERROR_NOT_READY;
      captures = captures || result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    work = work || any_departed(context) ||
           (!captures && driver_.cuStreamQuery(nullptr) == CUDA_ERROR_NOT_READY);
  };
  objects_.for_each_context(look);
  if (before) objects_.make_current(before->id);
  return work;
}

bool IdleCheck::any_capture() {
  ContextState* const before = objects_.current_context();
  bool captures = false;
  objects_.for_each_context([&](ContextState& context) {
    if (captures || objects_.make_current(context.id) != CUDA_SUCCESS) return;
    captures = std::ranges::any_of(streams_to_check(context), [&](const SessionStream& stream) {
      return refuse_capture(driver_, stream.handle) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    });
  });
  if (before) objects_.make_current(before->id);
  return captures;
}

void IdleCheck::when_idle(ContextState& context, WhenDone when_done) {
  const std::vector<SessionStream> streams = streams_to_check(context);
  // A query takes time, so it is made only if the program has already waited for its work. If the
  // query then finds the context idle, no event is needed.
  const Object& legacy = context.legacy_stream;
  if (streams.size() == 1 && legacy.last_use <= legacy.done_use && known_idle(context)) {
    return when_done(CUDA_SUCCESS);
  }
  // An event recorded on a stream in capture would become part of the graph.
  for (const SessionStream& stream : streams) {
    const CUresult result = refuse_capture(driver_, stream.handle);
    if (result != CUDA_SUCCESS) return when_done(result);
  }
  struct Outstanding {
    size_t streams;
    CUresult result;
    WhenDone when_done;
  };
  (void)any_departed(context);
  // A later peer copy must not extend a hold that precedes these events, because the events would
  // then wait for that copy.
  work_.note();
  auto outstanding = std::make_shared<Outstanding>(
      Outstanding{streams.size() + context.departed.size(), CUDA_SUCCESS, std::move(when_done)});
  const auto one_is_done = [outstanding](CUresult result) {
    if (outstanding->result == CUDA_SUCCESS) outstanding->result = result;
    if (--outstanding->streams == 0) outstanding->when_done(outstanding->result);
  };
  for (const auto& departed : context.departed) departed->waiters.push_back(one_is_done);
  for (const SessionStream& stream : streams) completions_.add(stream, one_is_done);
}

}  // namespace rcuda::server
