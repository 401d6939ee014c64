#include "client/session/wait.h"

#include <utility>

#include "client/session/news.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

using Scope = Timelines::Scope;

bool is_default_stream(const Route& route) { return stream_id(route) == 0; }

// Returns the work that a wait in the route's stream covers in addition to the work of that stream.
std::optional<Timelines::Positions> covered_from(const Route& route) {
  if (!is_default_stream(route)) return std::nullopt;
  return route.session->timelines().now(Scope::kDefaultStream, route.context);
}

bool is_awaited(const Route& route) {
  if (!is_default_stream(route)) return route.timeline->is_awaited();
  return route.session->timelines().is_awaited(Scope::kDefaultStream, route.context);
}

// Ends a call whose work other waits have already covered. Fetches mirrored memory if no fetch has
// begun since the last wait.
CUresult finish_awaited(const Route& route) {
  Session& session = *route.session;
  return session.mirrors().is_fetched() ? session.take_error() : Wait(route).finish();
}

}  // namespace

Word Wait::take_word() { return word_.emplace(session().words()).get(); }

CUresult Wait::run_command(const wire::Command& command) {
  MirrorSync& mirrors = session().mirrors();
  const bool is_for_context = command.is<wire::SynchronizeContextBody>();
  const bool is_for_event = command.is<wire::WatchEventBody>();
  const bool only_waits = is_for_context || is_for_event || command.is<wire::SignalBody>();
  if (is_for_context) {
    covered_ = session().timelines().now(Scope::kContext, route_.context);
  } else if (!is_for_event) {
    covered_ = covered_from(route_);
  }
  // Send the host's writes before a copy: a running kernel may wait for them, and until this kernel
  // ends, the copy may block the worker's driver and later commands.
  if (!only_waits) mirrors.show_writes();
  asked_ = mirrors.ask(word_->get());
  SentCommand sent;
  CUresult result = session().post(route_, command, transport::Wake::kNow, &sent);
  // Commands that signal are never refused as lacking (lacking_commands.h). So if this command was
  // not sent, the session is lost, which also ends the fetches.
  if (!sent.is_sent()) return session().lost() ? kSessionLost : result;
  if (only_waits) mirrors.show_writes();  // compares memory while the worker waits
  // The worker writes the word even if it refuses the command.
  const CUresult waited = session().wait_word(word_->get());
  News::add();
  if (waited == CUDA_SUCCESS) {
    if (covered_) session().timelines().waited(*std::exchange(covered_, std::nullopt));
    if (route_.timeline) route_.timeline->waited(sent.position);
    if (when_done_) when_done_();
  }
  if (result == CUDA_SUCCESS) result = waited;
  return result == CUDA_SUCCESS ? finish() : result;
}

bool Wait::start() {
  MirrorSync& mirrors = session().mirrors();
  if (mirrors.any()) {
    mirrors.show_writes();
    const Word word = take_word();
    asked_ = mirrors.ask(word);
    // If the command is not sent, the session is lost, which also ends the fetches.
    const wire::SignalBody body{stream_id(route_), word.index, word.sequence};
    if (asked_) (void)session().post(route_, body, transport::Wake::kWithNext);
  }
  covered_ = covered_from(route_);
  return asked_ != nullptr;
}

CUresult Wait::finish() {
  if (covered_) session().timelines().waited(*covered_);
  RCUDA_RETURN_IF_CUDA_ERROR(session().mirrors().fetch(asked_.get()));
  return session().take_error();
}

CUresult synchronize(const Route& route) {
  if (is_awaited(route)) return finish_awaited(route);
  return Wait(route).run(wire::SignalBody{stream_id(route), 0, 0});
}

CUresult synchronize_context(Session& session, wire::ObjectId context) {
  const Route route = session.in_context(context);
  if (session.timelines().is_awaited(Scope::kContext, context)) return finish_awaited(route);
  return Wait(route).run(wire::SynchronizeContextBody{});
}

CUresult await_writes(const Route& route) {
  MirrorSync& mirrors = route.session->mirrors();
  return mirrors.await_writes(mirrors.point(route.context, stream_id(route)),
                              [&] { return synchronize(route); });
}

}  // namespace rcuda::client
