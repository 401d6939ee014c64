// Copies and event waits between this worker and others of the session: each command is this
// worker's half, the client gives the other worker the other one.
#include <algorithm>
#include <cstring>
#include <utility>

#include "api/server_commands.h"
#include "api/traits.h"
#include "common/base/log.h"
#include "server/executor/custom.h"
#include "server/executor/peers.h"

namespace rcuda::server {
namespace {

HandlerResult answer(CUresult result) { return {result, false, false}; }

// The client did not introduce that worker, or the engine could not be started.
constexpr CUresult kNoPeer = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;

// The primary contexts as they are now: a reset replaces them.
std::vector<CudaDeviceOps::Device> devices_of(Executor& executor) {
  std::vector<CudaDeviceOps::Device> devices;
  for (uint32_t i = 0; i < executor.resources().devices.size(); ++i) {
    devices.push_back({executor.resources().devices[i].device,
                       executor.find_context(wire::primary_context_id(i))->handle,
                       executor.resources().gpudirect});
  }
  return devices;
}

bool is_device_memory(Executor& executor, uint64_t address) {
  unsigned type = 0;
  return executor.driver().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                 address) == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_DEVICE;
}

// A copy engine must be given nothing but the program's own memory: both ends of it are looked at,
// and what lies between them is one allocation or several of the program's.
Status check_memory(Executor& executor, const p2p::Shape& memory) {
  RCUDA_RETURN_IF_ERROR(memory.check());
  if (memory.bytes() == 0) return {};
  const uint64_t last = memory.address + (memory.depth - 1) * memory.slice_bytes +
                        (memory.height - 1) * memory.pitch_bytes + memory.width_bytes - 1;
  // The driver's answer takes longer the more other threads ask it of their DMA: what is copied
  // again and again is looked at once.
  CheckedMemory& checked = executor.checked_memory;
  if (checked.at != executor.other_work()) checked = {.at = executor.other_work()};
  for (const CheckedMemory::Range& known : checked.ranges) {
    if (known.first <= memory.address && last <= known.last) return {};
  }
  if (!is_device_memory(executor, memory.address) || !is_device_memory(executor, last)) {
    return {Code::kInvalidArgument, "a peer copy outside of device memory"};
  }
  checked.ranges[checked.next++ % checked.ranges.size()] = {memory.address, last};
  return {};
}

// The memory that a command frees; false for commands that free none, or in another way.
bool freed_memory(Executor& executor, api::Frees how, uint16_t opcode,
                  std::span<const std::byte> body, CUdeviceptr* base, size_t* bytes) {
  if (api::traits_of(opcode).frees != how) return false;
  const auto address = wire::Decoder(body).value<CUdeviceptr>();
  return executor.driver().cuMemGetAddressRange_v2(base, bytes, address) == CUDA_SUCCESS;
}

}  // namespace

std::unique_ptr<PeerHub> make_peers(Executor& executor) {
  PeerHub::Options options{executor.resources().peers};
  options.on_error = [&executor](CUresult error) { executor.latch(error); };
  // Wakes an executor thread that may be waiting in PeerWaits.
  options.on_change = [&executor] { executor.post([] {}); };
  options.report = [&executor](const std::string& line) {
    (void)executor.events().output(true, line);
  };
  return std::make_unique<PeerHub>(executor.driver(), std::move(options));
}

void when_peers_let_go(Executor& executor, uint16_t opcode, std::span<const std::byte> body,
                       std::function<void()> then) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  if (!executor.peers().active() ||
      !freed_memory(executor, api::Frees::kAtOnce, opcode, body, &base, &bytes)) {
    return then();
  }
  executor.peers().when_unused(base, bytes, [&executor, then = std::move(then)]() mutable {
    executor.post(std::move(then));
  });
}

void note_stream_ordered_free(Executor& executor, uint16_t opcode,
                              std::span<const std::byte> body) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  if (executor.peers().active() &&
      freed_memory(executor, api::Frees::kInStream, opcode, body, &base, &bytes)) {
    executor.peers().when_unused(base, bytes, [] {});
  }
}

// ---- what may run while streams are held -------------------------------------------------------

bool PeerWaits::may_run(std::span<const std::byte> frame) {
  // What a held stream's queues take without making their caller wait; a driver's take a thousand.
  constexpr int kMostBehind = 256;
  PeerHub& peers = executor_.peers();
  if (!peers.active()) [[likely]]
    return true;
  const p2p::Pause paused = peers.paused();
  if (paused == p2p::Pause::kWork) return false;
  wire::CommandHeader header;
  if (frame.size() < sizeof header) return true;  // malformed: refused where it is carried out
  std::memcpy(&header, frame.data(), sizeof header);
  const auto body = frame.subspan(sizeof header);
  const api::CommandTraits& traits = api::traits_of(header.opcode);
  bool holds = false;
  if (traits.holds_stream) {
    if (body.size() < traits.body_bytes) return true;
    const p2p::PeerId link = *api::member(body, traits.link);
    holds = api::holds_stream(traits, body) && peers.knows(link);
    const bool others_wait =
        !when_free_.empty() || paused != p2p::Pause::kNone || peers.wants(p2p::Pause::kHolds);
    if (holds && (others_wait || !peers.settled(link))) return false;
  }
  crowded_ = false;
  if (!peers.holding()) {
    behind_ = 0;
    if (!holds) return true;
  }
  const api::WhileHeld effect = effect_of(traits, header, body);
  if (behind_ >= kMostBehind || effect == api::WhileHeld::kWaits) return false;
  if (effect == api::WhileHeld::kQueues && !has_room(header.context)) {
    crowded_ = true;
    return false;
  }
  ++behind_;
  return true;
}

// Whether one stream more may have work under way. Which stream the command is for is not looked
// at: one that has work already may be waiting only now.
bool PeerWaits::has_room(wire::ObjectId id) {
  const size_t most = executor_.resources().most_streams;
  ContextState* context = most > 0 ? executor_.find_context(id) : nullptr;
  if (!context) return true;
  const size_t waiting = executor_.completions().waiting_streams() +
                         static_cast<size_t>(executor_.peers().waiting_streams());
  return waiting + executor_.busy_streams(context->device, false) < most ||
         waiting + executor_.busy_streams(context->device, true) < most;
}

void PeerWaits::when_free(std::function<void()> job) {
  if (when_free_.empty() && !executor_.peers().holding()) return job();
  when_free_.push_back(std::move(job));
}

// The thread that grants is the one that queues the program's work, so that between asking whether
// there is any and the end of the pause nothing comes up.
bool PeerWaits::begin_pause() {
  PeerHub& peers = executor_.peers();
  if (peers.holding()) return false;
  if (peers.wants(p2p::Pause::kWork) && executor_.known_idle()) {
    return peers.begin_pause(p2p::Pause::kWork);
  }
  return peers.wants(p2p::Pause::kHolds) && peers.begin_pause(p2p::Pause::kHolds);
}

bool PeerWaits::run_freed() {
  if (begin_pause()) return true;
  if (when_free_.empty() || executor_.peers().holding()) return false;
  for (const auto& job : std::exchange(when_free_, {})) job();
  return true;
}

api::WhileHeld PeerWaits::effect_of(const api::CommandTraits& traits,
                                    const wire::CommandHeader& header,
                                    std::span<const std::byte> body) {
  using api::WhileHeld;
  if (traits.while_held != WhileHeld::kAsks) return traits.while_held;
  const CustomEntry* entry = custom_command(header.opcode);
  const bool waits = entry->may_wait(executor_, {header, body, {}});
  return waits ? WhileHeld::kWaits : WhileHeld::kQueues;
}

HandlerResult peer_introduce(Executor& executor, const Command& command,
                             const wire::PeerIntroduceBody& body) {
  BodyReader in(command.tail);
  std::span<const std::byte> host;
  if (body.connects > 1 || !in.bytes(body.host_bytes, &host)) return kMalformed;
  PeerHub::Introduction introduction;
  introduction.link = body.link;
  introduction.worker = body.worker;
  std::memcpy(introduction.token.data(), body.token, introduction.token.size());
  introduction.connects = body.connects == 1;
  introduction.host.assign(reinterpret_cast<const char*>(host.data()), host.size());
  introduction.port = body.port;
  const Status status = executor.peers().introduce(introduction, devices_of(executor));
  // A program that never copies between servers goes on without.
  if (!status.ok()) {
    RCUDA_ERROR("no copies between servers in this session: %s", status.message().c_str());
    (void)executor.events().output(true, "rcuda: copies with worker " +
                                             std::to_string(body.worker) +
                                             " will fail: " + status.context() + "\n");
  }
  return {};
}

HandlerResult peer_copy(Executor& executor, const Command&, const wire::PeerCopyBody& body) {
  const WordSignal word{body.word, body.sequence};
  const auto failed = [&](CUresult result) {
    if (body.sequence == 0) return answer(result);
    executor.signal(word, result);
    return answer(CUDA_SUCCESS);
  };
  PeerHub& peers = executor.peers();
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
  copy.done = [&executor, word, in_stream](const Status& status) {
    const CUresult result = cuda_error_of(status);
    // A stream's error has been latched with the stream's release.
    if (result != CUDA_SUCCESS && !in_stream) executor.latch(result);
    executor.signal(word, result);
  };
  Status failure = check_memory(executor, copy.memory);
  if (in_stream) {
    StreamRef stream;
    if (CUresult found = executor.find_stream(body.stream, &stream); found != CUDA_SUCCESS) {
      failure = Status::from_cuda(found, "the stream of a peer copy");
    } else {
      copy.stream = CudaDeviceOps::stream_ref(stream.handle, stream.context->handle);
      if (copy.hold) {
        copy.stream->follows = executor.note_hold(stream.key);
      } else if (body.stream == 0) {
        // An event in the default stream takes longer to be seen than a small copy's DMA.
        copy.stream->idle = executor.known_idle(*stream.context);
      }
    }
  }
  if (failure.ok()) executor.copied_bytes += copy.memory.bytes();
  const Status queued = peers.copy(std::move(copy), std::move(failure));
  if (queued.ok()) return answer(CUDA_SUCCESS);
  executor.note_work();  // the stream is not held by it: no later copy is right behind one
  return failed(cuda_error_of(queued));
}

HandlerResult peer_signal(Executor& executor, const Command&, const wire::PeerSignalBody& body) {
  if (!executor.peers().knows(body.link)) return answer(kNoPeer);
  // A place that is not there is one without context: the engine fails to go there and tells the
  // other worker, whose stream waits.
  p2p::StreamRef place;
  if (body.is_event) {
    Object* event = executor.objects(wire::Kind::kEvent).find(body.place);
    ContextState* context = event ? executor.find_context(event->context) : nullptr;
    if (context) {
      place = CudaDeviceOps::event_ref(static_cast<CUevent>(event->handle), context->handle);
    }
  } else {
    StreamRef stream;
    if (executor.find_stream(body.place, &stream) == CUDA_SUCCESS) {
      place = CudaDeviceOps::stream_ref(stream.handle, stream.context->handle);
    }
  }
  return answer(cuda_error_of(executor.peers().engine().signal(body.link, body.id, place)));
}

HandlerResult peer_await(Executor& executor, const Command&, const wire::PeerSignalBody& body) {
  if (!executor.peers().knows(body.link)) return answer(kNoPeer);
  StreamRef stream;
  if (CUresult result = executor.find_stream(body.place, &stream); result != CUDA_SUCCESS) {
    return answer(result);
  }
  return answer(cuda_error_of(executor.peers().engine().await(
      body.link, body.id, CudaDeviceOps::stream_ref(stream.handle, stream.context->handle))));
}

HandlerResult peer_plan(Executor& executor, const Command& command, const wire::PeerPlanBody& body,
                        std::vector<std::byte>* reply) {
  if (!executor.peers().knows(body.link)) return answer(kNoPeer);
  const Result<p2p::Forecast> forecast = executor.peers().engine().plan(
      body.link, static_cast<int>(body.device), static_cast<int>(body.peer_device), body.bytes);
  if (!forecast && forecast.status().code() != Code::kUnavailable) {
    return answer(cuda_error_of(forecast.status()));
  }
  std::string text = forecast ? to_string(forecast->plan) : forecast.status().context();
  const size_t room = command.target.capacity() - sizeof(wire::PeerPlanReply);
  text.resize(std::min(text.size(), room));
  append(reply, forecast ? forecast->plan.predicted_us : 0.0);
  append(reply, static_cast<uint32_t>(forecast && forecast->measured));
  append(reply, static_cast<uint32_t>(text.size()));
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  reply->insert(reply->end(), bytes, bytes + text.size());
  return forecast ? answer(CUDA_SUCCESS) : answer(CUDA_ERROR_NOT_READY);
}

}  // namespace rcuda::server
