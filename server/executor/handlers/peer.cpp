// Handlers of copies and signals between this worker and the program's other workers. The client
// sends PeerCopy to both workers, and PeerSignal to one worker with PeerAwait to the other.
#include <algorithm>
#include <cstring>
#include <utility>

#include "api/server_commands.h"
#include "common/base/log.h"
#include "common/cuda/return_if_error.h"
#include "server/executor/answers/answers.h"
#include "server/executor/core/custom.h"
#include "server/executor/core/session_resources.h"
#include "server/executor/objects/objects.h"
#include "server/executor/peers/peer_hub.h"
#include "server/executor/peers/peer_memory.h"
#include "server/executor/streams/idle.h"
#include "server/executor/streams/work_count.h"

namespace rcuda::server {
namespace {

// The error if the client did not introduce the peer worker, or the engine could not be started.
constexpr CUresult kNoPeer = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;

// Returns the session's devices with their present primary contexts. A reset replaces a context.
std::vector<CudaDeviceOps::Device> devices_of(PeerServices& services) {
  std::vector<CudaDeviceOps::Device> devices;
  for (uint32_t i = 0; i < services.resources.devices.size(); ++i) {
    devices.push_back({services.resources.devices[i].device,
                       services.objects.find_context(wire::primary_context_id(i))->handle,
                       services.resources.gpudirect});
  }
  return devices;
}

}  // namespace

HandlerResult peer_introduce(PeerServices& services, const Command& command,
                             const wire::PeerIntroduceBody& body) {
  BodyReader in(command.tail);
  std::span<const std::byte> host;
  if (body.connects > 1 || body.encrypted > 2 || !in.bytes(body.host_bytes, &host))
    return kMalformed;
  PeerHub::Introduction introduction;
  introduction.link = body.link;
  introduction.worker = body.worker;
  introduction.workers = body.workers;
  std::memcpy(introduction.token.data(), body.token, introduction.token.size());
  introduction.connects = body.connects == 1;
  introduction.encrypted = body.encrypted != 0;
  introduction.must_encrypt = body.encrypted == 2;
  introduction.host.assign(reinterpret_cast<const char*>(host.data()), host.size());
  introduction.port = body.port;
  introduction.reconnect = std::chrono::milliseconds(body.reconnect_ms);
  const Status status = services.peers.introduce(introduction, devices_of(services));
  if (status.code() == Code::kProtocol) return kMalformed;
  // The command itself does not fail: a program that never copies between servers needs no peer.
  if (!status.ok() && services.peers.says_refusal()) {
    const std::string other = PeerHub::other_server(introduction);
    RCUDA_ERROR("this session cannot copy to and from %s: %s", other.c_str(),
                status.message().c_str());
    (void)services.answers.events().output(
        true, "rcuda: copies with " + other + " will fail: " + status.context() + "\n");
  }
  return {};
}

HandlerResult peer_copy(PeerServices& services, const Command&, const wire::PeerCopyBody& body) {
  const WordSignal word{body.word, body.sequence};
  // An error is reported once: by the half with kPeerReports, in the completion word of a waiting
  // caller, or by a third worker, which gets the error with the copy's signal (peer_signal()).
  const bool reports = body.flags & wire::kPeerReports;
  const PeerHub::Outcome outcome =
      body.flags & wire::kPeerSignalled ? services.peers.make_outcome(body.id) : nullptr;
  const auto failed = [&](CUresult result) {
    if (outcome) *outcome = Status::from_cuda(result, "the peer copy was refused");
    services.answers.signal(word, result);
    return reports ? result : CUDA_SUCCESS;
  };
  PeerHub& peers = services.peers;
  if (!peers.knows(body.link)) return failed(kNoPeer);

  const bool in_stream = body.flags & wire::kPeerInStream;
  p2p::PeerCopy copy;
  copy.id = body.id;
  copy.peer = body.link;
  copy.outgoing = body.flags & wire::kPeerOutgoing;
  copy.device = static_cast<int>(body.device);
  copy.peer_device = static_cast<int>(body.peer_device);
  copy.memory = {body.address, body.width_bytes, body.height,
                 body.depth,   body.pitch_bytes, body.slice_bytes};
  copy.hold = body.flags & wire::kPeerHolds;
  copy.peer_has_stream = body.flags & wire::kPeerOtherStream;
  copy.reports = reports;
  copy.done = [&answers = services.answers, word, outcome,
               latches = reports && !in_stream](const Status& status) {
    if (outcome) *outcome = status;
    const CUresult result = cuda_error_of(status);
    // For a copy in a stream, the engine latches the error when it releases the stream.
    if (result != CUDA_SUCCESS && latches) answers.latch(result);
    answers.signal(word, result);
  };
  Status failure = services.memory.check(copy.memory);
  SessionStream stream;
  bool has_stream = false;
  if (in_stream) {
    if (CUresult found = services.objects.use_stream(body.stream, &stream); found != CUDA_SUCCESS) {
      failure = Status::from_cuda(found, "looking up the stream of a peer copy");
    } else {
      has_stream = true;
      copy.stream = CudaDeviceOps::stream_ref(stream.handle, stream.context->handle);
      if (copy.hold) {
        copy.stream->follows = services.work.note_hold(stream.key);
      } else if (body.stream == 0) {
        // Avoids an event in the default stream, which takes longer than the DMA of a small copy.
        copy.stream->idle = services.idle.known_idle(*stream.context);
      }
    }
  }
  const uint64_t bytes = copy.memory.bytes();
  const bool outgoing = copy.outgoing;
  const Status queued = peers.copy(std::move(copy), std::move(failure));
  if (queued.ok()) {
    services.done.copied(outgoing ? wire::Counter::kBytesToServer : wire::Counter::kBytesFromServer,
                         bytes);
    return CUDA_SUCCESS;
  }
  // The refused copy holds no stream. Without note(), the next copy could count as following it
  // (note_hold()).
  services.work.note();
  return failed(cuda_error_of(queued));
}

HandlerResult peer_signal(PeerServices& services, const Command&,
                          const wire::PeerSignalBody& body) {
  const PeerHub::Outcome outcome = services.peers.take_outcome(body.copy);
  if (!services.peers.knows(body.link)) return kNoPeer;
  // If the stream or the event does not exist, `signalled` stays empty. The engine reports this to
  // the peer worker, whose stream waits for the signal.
  p2p::StreamRef signalled;
  if (body.is_event) {
    Object* event = services.objects.of(wire::Kind::kEvent).find(body.place);
    ContextState* context = event ? services.objects.find_context(event->context) : nullptr;
    if (context) {
      signalled = CudaDeviceOps::event_ref(static_cast<CUevent>(event->handle), context->handle);
    }
  } else {
    SessionStream stream;
    if (services.objects.use_stream(body.place, &stream) == CUDA_SUCCESS) {
      signalled = CudaDeviceOps::stream_ref(stream.handle, stream.context->handle);
    }
  }
  return cuda_error_of(services.peers.engine().signal(body.link, body.id, signalled, outcome));
}

HandlerResult peer_await(PeerServices& services, const Command&, const wire::PeerSignalBody& body) {
  if (!services.peers.knows(body.link)) return kNoPeer;
  SessionStream stream;
  RCUDA_RETURN_IF_CUDA_ERROR(services.objects.use_stream(body.place, &stream));
  return cuda_error_of(services.peers.engine().await(
      body.link, body.id, CudaDeviceOps::stream_ref(stream.handle, stream.context->handle)));
}

HandlerResult peer_plan(PeerServices& services, const Command& command,
                        const wire::PeerPlanBody& body, std::vector<std::byte>* reply) {
  if (!services.peers.knows(body.link)) return kNoPeer;
  const Result<p2p::Forecast> forecast = services.peers.engine().plan(
      body.link, static_cast<int>(body.device), static_cast<int>(body.peer_device), body.bytes);
  if (!forecast && forecast.status().code() != Code::kUnavailable) {
    return cuda_error_of(forecast.status());
  }
  std::string text =
      forecast ? to_string(forecast->plan) + "\n" + forecast->table : forecast.status().context();
  const size_t room = command.target.capacity() - sizeof(wire::PeerPlanReply);
  text.resize(std::min(text.size(), room));
  append(reply, forecast ? forecast->plan.predicted_us : 0.0);
  append(reply, static_cast<uint32_t>(forecast && forecast->measured));
  append(reply, static_cast<uint32_t>(text.size()));
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  reply->insert(reply->end(), bytes, bytes + text.size());
  return forecast ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

}  // namespace rcuda::server
