#include "client/copy/peer.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "client/mirror/mirror.h"
#include "client/mirror/session_order.h"
#include "client/objects/arena.h"
#include "client/objects/named.h"
#include "client/process/process.h"
#include "client/route/capture.h"
#include "client/session/news.h"
#include "client/session/reached_places.h"
#include "client/session/wait.h"
#include "common/base/mutex.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

CUresult either(CUresult first, CUresult second) { return first != CUDA_SUCCESS ? first : second; }

// Sends a command. Does not return errors of earlier commands; the caller gets them from
// take_errors().
CUresult send(const Route& route, const wire::Command& command) {
  return route.session->post(route, command);
}

// Takes the first error of earlier commands of these sessions. Errors of the later sessions stay
// for their next calls.
CUresult take_errors(std::initializer_list<Session*> sessions) {
  for (Session* session : sessions) {
    RCUDA_RETURN_IF_CUDA_ERROR(session->take_error());
  }
  return CUDA_SUCCESS;
}

// The commands for the two halves of a copy. An error of the copy is reported once: by the session
// of the stream that waits for the copy, or by the call that waits for it.
class Halves {
 public:
  explicit Halves(const CopyBetweenServers& copy)
      : source_(*copy.source.owner.session), destination_(*copy.destination.owner.session) {
    const Process& process = Process::get();
    const uint32_t from = process.device(static_cast<CUdevice>(copy.source.owner.device))->ordinal;
    const uint32_t to =
        process.device(static_cast<CUdevice>(copy.destination.owner.device))->ordinal;
    out_ = half(copy.source, copy.extent, from, to);
    out_.flags = wire::kPeerOutgoing;
    in_ = half(copy.destination, copy.extent, to, from);
    out_route_.emplace(copy.source.owner);
    in_route_.emplace(copy.destination.owner);
  }

  bool has_side_on(const Session* session) const {
    return session == &source_ || session == &destination_;
  }
  // Orders one half in the stream `place`: the half of the worker that owns this stream. `hold`:
  // later work in the stream waits for the copy, and the session of this worker reports an error of
  // the copy.
  void order_with(const StreamRoute& place, bool hold) {
    const bool outgoing = place.session == &source_;
    wire::PeerCopyBody& body = outgoing ? out_ : in_;
    body.stream = place.id;
    body.flags |= wire::kPeerInStream | (hold ? wire::kPeerHolds | wire::kPeerReports : 0u);
    (outgoing ? out_route_ : in_route_).emplace(place);
    if (!outgoing) out_.flags |= wire::kPeerOtherStream;
  }

  // Orders the source's half in `passing`, a stream of this library, for a copy that was issued in
  // a stream of a third worker. The signal that follows the half names the copy, so that the third
  // worker reports the copy's error.
  void order_between(const StreamRoute& passing) {
    order_with(passing, true);
    out_.flags ^= wire::kPeerReports | wire::kPeerSignalled;
  }
  uint64_t id() const { return out_.id; }  // 0 before the halves are sent

  // Makes the destination's session report an error of the copy. For copies whose result no caller
  // receives.
  void destination_reports() { in_.flags |= wire::kPeerReports; }

  CUresult post() { return post_with({}); }

  CUresult post_and_wait() {
    const WaitWord word(destination_.words());
    CUresult result = post_with(word.get());
    // The destination's worker writes the word even if a half was refused. If this worker is lost,
    // wait_word() returns kSessionLost.
    if (posted_) {
      result = either(result, destination_.wait_word(word.get()));
      News::add();
    }
    return result;
  }

 private:
  static wire::PeerCopyBody half(const PeerSide& side, const PeerExtent& extent, uint32_t device,
                                 uint32_t peer_device) {
    wire::PeerCopyBody body{};
    body.device = device;
    body.peer_device = peer_device;
    body.address = side.address;
    body.width_bytes = extent.width_bytes;
    body.height = extent.height;
    body.depth = extent.depth;
    body.pitch_bytes = side.pitch_bytes;
    body.slice_bytes = side.slice_bytes;
    return body;
  }

  CUresult post_with(Word word) {
    Peers& peers = Process::get().peers();
    RCUDA_RETURN_IF_CUDA_ERROR(peers.wake(source_, destination_));
    MutexLock lock(peers.pairs_mutex());
    uint32_t link = 0;
    RCUDA_RETURN_IF_CUDA_ERROR(peers.link(source_, destination_, &link));
    out_.link = in_.link = link;
    out_.id = in_.id = peers.next_id();
    in_.word = word.index;
    in_.sequence = word.sequence;
    const CUresult sent = send(*out_route_, out_);
    if (source_.lost()) return kSessionLost;
    // Send the second half even if the worker refused the first (with RCUDA_SYNC, send() returns
    // this error): the second half then ends with the same error.
    const CUresult received = send(*in_route_, in_);
    posted_ = true;
    return either(sent, received);
  }

  Session& source_;
  Session& destination_;
  wire::PeerCopyBody out_{}, in_{};
  std::optional<Route> out_route_, in_route_;
  bool posted_ = false;
};

// All work sent to a stream so far, or the latest record of an event.
struct Earlier {
  Route worker;
  wire::ObjectId id = 0;  // of the stream, or of the event
  bool is_event = false;
  uint64_t copy = 0;  // a copy whose error the later stream's worker reports; 0: none
};

// Orders work of two workers: commands that are sent to the stream `later` after this call wait for
// `earlier`.
CUresult signal_then_await(const Earlier& earlier, const StreamRoute& later) {
  Session& signalling = *earlier.worker.session;
  Peers& peers = Process::get().peers();
  RCUDA_RETURN_IF_CUDA_ERROR(peers.wake(signalling, *later.session));
  MutexLock lock(peers.pairs_mutex());
  uint32_t link = 0;
  RCUDA_RETURN_IF_CUDA_ERROR(peers.link(signalling, *later.session, &link));
  wire::PeerSignalBody body{};
  body.id = peers.next_id();
  body.copy = earlier.copy;
  body.link = link;
  body.is_event = earlier.is_event;
  body.place = earlier.id;
  const CUresult signalled = send(earlier.worker, body);
  // Send no PeerAwait: the stream would wait for a signal of the lost worker.
  if (signalling.lost()) return kSessionLost;
  body.copy = 0;
  body.is_event = 0;
  body.place = later.id;
  SentCommand sent;
  const CUresult awaited =
      later.session->post(later, wire::PeerAwaitBody{body}, transport::Wake::kYes, &sent);
  if (sent.is_sent()) note_order(signalling, later, sent, any_mirrored());
  return either(signalled, awaited);
}

// If copies before the event write page-locked memory, copies in the stream `later` may read this
// memory. The client then sends it as soon as the event's stream has reached the event
// (client/session/reached_places.h).
void follow_writes(const StreamRoute& later, Event& event) {
  const transport::MediumTraits& traits = later.session->traits();
  if (!later.timeline || traits.shares_pages || !traits.copies_by_cpu) return;
  const EventState::Place place = event.state.place();
  if (!place.timeline || !place.timeline->may_write_until(place.position)) return;
  std::shared_ptr<ReachedPlace> watched = event.session->reached_places().watch(
      {route_of(event), event.id, place.timeline, place.position, place.command});
  if (watched) later.timeline->follows(std::move(watched));
}

// Returns the stream that this library has in the context of `owner`. Copies issued in a third
// server's streams are ordered in this stream, so they run in the order of their calls. The
// additional order is allowed, because unrelated streams may run in any order.
CudaResult<StreamRoute> passing_stream(const Route& owner) {
  static auto* mutex = new Mutex;
  static auto* streams = new std::vector<Ref<Stream>>;  // one per context, made on demand
  MutexLock lock(*mutex);
  std::erase_if(*streams, [](const Ref<Stream>& known) { return !known.get(); });
  const auto found = std::find_if(streams->begin(), streams->end(), [&](const Ref<Stream>& known) {
    const Stream& stream = *known.handle();
    return stream.session == owner.session && stream.context == owner.context;
  });
  auto stream = found != streams->end() ? reinterpret_cast<CUstream>(found->handle()) : nullptr;
  if (!stream) {
    const InContext scope(owner);
    RCUDA_RETURN_IF_CUDA_ERROR(forward_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    auto* created = find<Stream>(stream);
    created->timeline->set_with_legacy(Timeline::WithLegacy::kNo);
    streams->push_back(Ref(created));
  }
  return find_paced_stream(stream);
}

CUresult copy_asynchronously(const CopyBetweenServers& copy, const StreamRoute& issued) {
  Halves halves(copy);
  if (halves.has_side_on(issued.session)) {
    halves.order_with(issued, true);
    return halves.post();
  }
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute passing, passing_stream(copy.source.owner));
  RCUDA_RETURN_IF_CUDA_ERROR(signal_then_await({issued, issued.id}, passing));
  halves.order_between(passing);
  const CUresult result = halves.post();
  return either(result, signal_then_await({passing, passing.id, false, halves.id()}, issued));
}

CUresult copy_and_wait(const CopyBetweenServers& copy, const StreamRoute& issued) {
  const Route& source = copy.source.owner;
  const Route& destination = copy.destination.owner;
  Halves halves(copy);
  const auto is_side = [&](const Route& owner) {
    return issued.session == owner.session && issued.context == owner.context;
  };
  // The copy holds no stream, because no work can depend on the copy before this call returns.
  const bool legacy = issued.id == 0;
  if (legacy ? !is_side(source) && !is_side(destination) : !halves.has_side_on(issued.session)) {
    RCUDA_RETURN_IF_CUDA_ERROR(synchronize(issued));
  }
  if (!legacy) {
    if (halves.has_side_on(issued.session)) halves.order_with(issued, false);
    return halves.post_and_wait();
  }
  constexpr auto kScope = Timelines::Scope::kDefaultStream;
  const std::array<const Route*, 2> sides{&source, &destination};
  std::array<Timelines::Positions, 2> before;
  for (size_t i = 0; i < sides.size(); ++i) {
    Timelines& timelines = sides[i]->session->timelines();
    before[i] = timelines.now(kScope, sides[i]->context);
    // If the default stream is quiet, it has no work to wait for, and the copy need not be ordered
    // in it.
    if (!timelines.is_quiet(kScope, sides[i]->context)) {
      halves.order_with(in_default_stream(*sides[i]), false);
    }
  }
  const CUresult result = halves.post_and_wait();
  if (result == CUDA_SUCCESS) {
    // The copy started after both default streams had reached it, so the work before it is done.
    // The timelines record this, so that the next copy does not query the workers.
    for (size_t i = 0; i < sides.size(); ++i) {
      sides[i]->session->timelines().done(before[i]);
    }
  }
  return result;
}

}  // namespace

void copy_between_servers_now(const CopyBetweenServers& copy) {
  Halves halves(copy);
  halves.destination_reports();
  (void)halves.post_and_wait();
}

CUresult copy_between_servers(const CopyBetweenServers& copy, CUstream stream, bool synchronous) {
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute issued, find_paced_stream(stream));
  RCUDA_RETURN_IF_CUDA_ERROR(synchronous ? copy_and_wait(copy, issued)
                                         : copy_asynchronously(copy, issued));
  return take_errors({issued.session, copy.source.owner.session, copy.destination.owner.session});
}

CUresult wait_across_servers(CUstream handle, const StreamRoute& stream, CUevent event_handle,
                             Event& event) {
  if (any_capture() &&
      (may_capture(handle) || forward_cuEventQuery(event_handle) == CUDA_ERROR_CAPTURED_EVENT)) {
    // A capture cannot span servers.
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  pace(stream);
  RCUDA_RETURN_IF_CUDA_ERROR(signal_then_await({route_of(event), event.id, true}, stream));
  follow_writes(stream, event);
  return take_errors({stream.session, event.session});
}

}  // namespace rcuda::client
