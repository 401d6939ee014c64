#include "p2p/copy/receiver.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <string>

#include "common/base/log.h"
#include "common/base/units.h"
#include "p2p/staging/arena.h"
#include "p2p/staging/device_region.h"

namespace rcuda::p2p {
namespace {

Status disagreement(uint64_t copy, uint64_t theirs, uint64_t ours) {
  return {Code::kInvalidArgument, "the two sides of peer copy " + std::to_string(copy) +
                                      " have different sizes: the sender has " +
                                      std::to_string(theirs) + " bytes, the receiver " +
                                      std::to_string(ours)};
}

Status violation(uint64_t copy, const std::string& what) {
  return peer_violation("peer copy " + std::to_string(copy) + ": the sender sent " + what);
}

std::string text_of(const ChunkMessage& chunk) {
  return "a Chunk of " + std::to_string(chunk.bytes) + " bytes at offset " +
         std::to_string(chunk.offset) + " of " + std::to_string(chunk.total);
}

}  // namespace

void Receiver::close_mappings() {
  for (const auto& [key, mapping] : mappings_) {
    environment_.ops.close(key.first, mapping.memory.base);
  }
  mappings_.clear();
}

// Returns the number of chunks that the sender has announced.
uint64_t Receiver::announced(const Incoming& copy) {
  return copy.consumed + copy.landing.size() + copy.arrived.size();
}

Status Receiver::on_chunk(const ChunkMessage& message, const PeerLink& link) {
  if (is_full(message.copy)) return too_many_copies();
  Incoming& copy = find_or_make(message.copy);
  if (is_aborted(copy.state) || copy.choice == Choice::kPull || copy.choice == Choice::kWant) {
    return violation(message.copy, "a Chunk after Abort, or during Want or Pull");
  }
  uint64_t end = 0;
  if (message.offset != copy.next || __builtin_add_overflow(message.offset, message.bytes, &end) ||
      end > message.total || (message.bytes == 0) != (message.total == 0) ||
      (message.predecessor != 0 && message.predecessor == message.copy)) {
    return violation(message.copy, text_of(message) + " with predecessor " +
                                       std::to_string(message.predecessor) +
                                       "; the offset must be " + std::to_string(copy.next) +
                                       ", the chunk must end inside of the copy, and the "
                                       "predecessor must be another copy");
  }
  uint64_t inbox_bytes = 0;
  switch (message.where) {
    case Where::kHostInbox:
      inbox_bytes = link.inbox.bytes;
      break;
    case Where::kDeviceInbox:
      // Not checked here: the device is known only from the client's half. land() checks the slot
      // in that device's inbox.
      inbox_bytes = UINT64_MAX;
      break;
    case Where::kTarget:
      if (copy.target == transport::RegionId::kNone) {
        return violation(message.copy, text_of(message) +
                                           " for the destination, which this side has not offered");
      }
      inbox_bytes = UINT64_MAX;
      break;
    default:
      return violation(message.copy, "a Chunk in memory of unknown kind " +
                                         std::to_string(static_cast<uint32_t>(message.where)));
  }
  if (message.slot > inbox_bytes || message.bytes > inbox_bytes - message.slot) {
    return violation(message.copy, "a Chunk of " + std::to_string(message.bytes) +
                                       " bytes at offset " + std::to_string(message.slot) +
                                       " of the inbox, which has " + std::to_string(inbox_bytes) +
                                       " bytes");
  }
  if (message.total == 0 && announced(copy) > 0) {
    return violation(message.copy, "a second Chunk, although the copy has 0 bytes");
  }
  if (arrived_ >= most_arrived(link)) {
    return violation(message.copy, "a Chunk although the inbox already has its limit of " +
                                       std::to_string(arrived_) + " waiting chunks");
  }
  ++arrived_;
  copy.next = end;
  copy.choice = Choice::kChunks;
  copy.chunk_bytes = std::max(copy.chunk_bytes, message.bytes);
  copy.arrived.push_back(message);
  return {};
}

// Returns the most chunks that may be announced and not yet copied in. A chunk has a slot of at
// least kAlignment bytes in an inbox. Exceptions are the chunk of an empty copy and a chunk that
// the sender has written to the destination (Where::kTarget). Both are the only chunk of their
// copy, so `+ copies_.size()` allows for them.
uint64_t Receiver::most_arrived(const PeerLink& link) const {
  uint64_t inbox_bytes = link.inbox.bytes;
  for (const DeviceBuffer& inbox : link.device_inbox) inbox_bytes += inbox.bytes();
  return inbox_bytes / Arena::kAlignment + copies_.size();
}

void Receiver::pop_arrived(Incoming& copy) {
  copy.arrived.pop_front();
  --arrived_;
}

// Takes the sender's Want or Pull. A copy has at most one of them, before its first chunk.
Result<Incoming*> Receiver::begin_choice(uint64_t id, Choice choice) {
  if (is_full(id)) return too_many_copies();
  Incoming& copy = find_or_make(id);
  if (copy.choice != Choice::kNone || is_aborted(copy.state)) {
    return violation(id, std::string(choice == Choice::kWant ? "Want" : "Pull") +
                             " after Abort, a Chunk, or an earlier Want or Pull");
  }
  copy.choice = choice;
  return &copy;
}

Status Receiver::on_want(const WantMessage& message) {
  return begin_choice(message.copy, Choice::kWant).status();
}

Status Receiver::on_pull(const PullMessage& message) {
  if (message.predecessor != 0 && message.predecessor == message.copy) {
    return violation(message.copy, "a Pull that names this copy as its own predecessor");
  }
  const Result<Incoming*> copy = begin_choice(message.copy, Choice::kPull);
  if (copy) (*copy)->pull = message;
  return copy.status();
}

Status Receiver::on_abort(const EndMessage& message) {
  const Status status = status_of(message);
  if (status.ok()) return violation(message.copy, "Abort without an error code");
  if (is_full(message.copy)) return too_many_copies();
  Incoming& copy = find_or_make(message.copy);
  if (is_aborted(copy.state)) return violation(message.copy, "Abort twice");
  if (message.chunks > announced(copy)) {
    return violation(message.copy, "Abort after " + std::to_string(message.chunks) +
                                       " chunks, of which " + std::to_string(announced(copy)) +
                                       " were announced");
  }
  copy.sent = message.chunks;
  fail(copy, status, IncomingEvent::kAbort);
  return {};
}

Status Receiver::on_forget(const ForgetMessage& message) {
  // One handle may be mapped for several devices. Forgotten is sent after the last unmapping.
  bool in_use = false;
  for (auto& [key, mapping] : mappings_) {
    if (key.second != message.handle) continue;
    if (mapping.forget_request) {
      return peer_violation("the peer worker sent Forget requests " +
                            std::to_string(*mapping.forget_request) + " and " +
                            std::to_string(message.request) + " for the same memory");
    }
    in_use = true;
    mapping.forget_request = message.request;
  }
  if (!in_use) forgotten_.push_back(message.request);
  return {};
}

Result<bool> Receiver::advance(PeerLink* link) {
  bool moved = false;
  for (auto at = awake_.begin(); at != awake_.end();) {
    Incoming& copy = copies_.at(*at);
    RCUDA_RETURN_IF_ERROR(advance(copy, link, moved));
    const bool ended = is_over(copy);
    const bool sleeps = ended || dormant(copy);
    moved |= ended;
    if (ended) copies_.erase(*at);
    at = sleeps ? awake_.erase(at) : std::next(at);
  }
  RCUDA_RETURN_IF_ERROR(close_forgotten(link, moved));
  return moved;
}

bool Receiver::is_over(const Incoming& copy) {
  switch (copy.state) {
    case IncomingState::kDone:
      return true;
    case IncomingState::kClosing:
      return copy.finished && copy.arrived.empty() && copy.reported >= copy.sent;
    case IncomingState::kLost:
      return copy.landing.empty() && (copy.finished || !copy.request);
    default:
      return false;
  }
}

// Whether only a message of the sender can advance the copy. Such a copy leaves awake_.
bool Receiver::dormant(const Incoming& copy) {
  const bool waits = copy.choice == Choice::kNone || copy.choice == Choice::kChunks;
  const bool began = copy.state == IncomingState::kReady || copy.state == IncomingState::kOffered;
  return began && waits && copy.arrived.empty();
}

Status Receiver::advance(Incoming& copy, PeerLink* link, bool& moved) {
  PeerLink* const open = link && link->open && lost_.ok() ? link : nullptr;
  if (copy.state == IncomingState::kWaiting) {
    RCUDA_RETURN_IF_ERROR(await_stream(copy, open, moved));
  }
  if (open && may_land(copy.state)) {
    if (copy.choice == Choice::kWant) {
      moved = true;
      RCUDA_RETURN_IF_ERROR(answer_want(copy, *open));
    }
    if (copy.choice == Choice::kPull && copy.state == IncomingState::kReady &&
        may_follow(copy, copy.pull.predecessor)) {
      moved = true;
      RCUDA_RETURN_IF_ERROR(start_pull(copy, *open));
    }
    moved |= start_landing(copy, *open);
  }
  moved |= collect_landed(copy);
  // Send Consumed as chunks land, not only at the end, because the sender may wait for a slot.
  // After the last chunk, send only Done.
  const bool more_to_come =
      !copy.landing.empty() || (copy.request && copy.landed < copy.request->memory.bytes());
  if (open && !fails(copy.state) && more_to_come && copy.slot_wanted) {
    moved = true;
    RCUDA_RETURN_IF_ERROR(report_consumed(copy, *open, copy.consumed));
  }
  if (!copy.landing.empty()) return {};
  if (open && is_aborted(copy.state)) RCUDA_RETURN_IF_ERROR(drop_arrived(copy, *open, moved));
  return end(copy, link, open, moved);
}

// Reports to the sender when the stream has reached the copy. `open`: null if no message can be
// sent.
Status Receiver::await_stream(Incoming& copy, PeerLink* open, bool& moved) {
  if (copy.place != StreamPlace::kNone) {
    const Result<bool> reached = environment_.places.reached(copy.place);
    if (!reached) fail(copy, reached.status());
    if (!reached || !*reached) return {};
  }
  if (!open) return {};  // Ready needs an open Link
  moved = true;
  move(copy, IncomingEvent::kStreamReached);
  // A sender that has already chosen how to copy needs Ready only to learn that this side's stream
  // has reached the copy. Without a stream it needs no Ready.
  if (copy.place == StreamPlace::kNone && copy.choice != Choice::kNone) return {};
  ReadyMessage ready;
  ready.copy = copy.id;
  return open->mailbox.send(ready, when());
}

// Counts the chunks whose copy into the destination has ended. Returns true if there were any.
bool Receiver::collect_landed(Incoming& copy) {
  bool any = false;
  while (!copy.landing.empty()) {
    const Landing& landing = copy.landing.front();
    const Result<bool> finished =
        environment_.lanes.finished(copy.request->device, landing.lane, landing.ticket);
    if (finished && !*finished) break;
    if (!finished) fail(copy, finished.status());
    copy.landed += landing.bytes;
    copy.slot_wanted |= landing.slot_wanted;
    ++copy.consumed;
    copy.landing.pop_front();
    --environment_.landings;
    any = true;
  }
  return any;
}

// Ends a copy that has failed or whose bytes have all landed, and sends Done.
Status Receiver::end(Incoming& copy, PeerLink* link, PeerLink* open, bool& moved) {
  const bool landing =
      copy.state == IncomingState::kLanding || copy.state == IncomingState::kPulling;
  const bool complete =
      landing && copy.arrived.empty() && copy.landed == copy.request->memory.bytes();
  const bool sends_done = open && (complete || owes_done(copy.state));
  const bool has_failed = fails(copy.state) && !owes_done(copy.state);
  // Report the end to the program before the sender gets Done, so that a program that waits for
  // this half continues earlier.
  if ((sends_done || has_failed) && copy.request && !copy.finished) {
    moved = true;
    finish(copy, link, copy.failure);
  }
  if (!sends_done) return {};
  moved = true;
  move(copy, complete ? IncomingEvent::kDone : IncomingEvent::kRefusal);
  return open->mailbox.send(make_end(MessageKind::kDone, copy.id, copy.failure), when(),
                            copy.chunk_bytes);
}

// Registers the destination without a pause: see pause.h, rule 4.
Status Receiver::answer_want(Incoming& copy, PeerLink& link) {
  TargetMessage message;
  message.copy = copy.id;
  const Shape& memory = copy.request->memory;
  const auto region = memory.contiguous() && memory.bytes() > 0
                          ? expose_device_memory(environment_.ops, *link.link, copy.request->device,
                                                 memory.address, memory.bytes(), For::kPeer)
                          : Result<transport::Region>(Status(
                                Code::kUnsupported, "the memory is not contiguous, or is empty"));
  copy.choice = Choice::kChunks;
  if (region) {
    copy.target = region->id;
    message.region = static_cast<uint64_t>(region->id);
    move(copy, IncomingEvent::kOffer);
  } else {
    RCUDA_INFO(
        "peer copy %llu of %s goes through staging memory, because its destination cannot be "
        "registered for GPUDirect: %s",
        static_cast<unsigned long long>(copy.id), bytes_text(memory.bytes()).c_str(),
        region.status().message().c_str());
    message.refused = 1;
  }
  return link.mailbox.send(message);
}

// Maps the peer's memory, or finds the existing mapping. The box `source` at `offset` must lie
// inside the mapping.
Result<Receiver::PeerMapping*> Receiver::map(int device, const Handle& handle, uint64_t offset,
                                             const Shape& source) {
  const auto key = std::make_pair(device, handle);
  auto known = mappings_.find(key);
  if (known == mappings_.end()) {
    ExportedMemory memory;
    memory.handle = handle;
    RCUDA_ASSIGN_OR_RETURN(const MappedMemory opened, environment_.ops.open(device, memory));
    known = mappings_.emplace(key, PeerMapping{opened, 0, std::nullopt}).first;
  }
  const uint64_t bytes = known->second.memory.bytes;
  if (offset > bytes || source.extent_bytes() > bytes - offset) {
    return Status(Code::kInvalidArgument,
                  "the sender's Pull has a source of " + std::to_string(source.extent_bytes()) +
                      " bytes at offset " + std::to_string(offset) +
                      ", outside of the mapped memory of " + std::to_string(bytes) + " bytes");
  }
  return &known->second;
}

// Maps the source and queues the copy from it. Returns only errors of the Link; any other error
// fails the copy.
Status Receiver::start_pull(Incoming& copy, PeerLink& link) {
  const PeerCopy& request = *copy.request;
  const PullMessage& pull = copy.pull;
  Shape source{0, pull.width_bytes, pull.height, pull.depth, pull.pitch_bytes, pull.slice_bytes};
  Status sane = source.check();
  if (sane.ok() && source.bytes() != request.memory.bytes()) {
    sane = disagreement(copy.id, source.bytes(), request.memory.bytes());
  }
  const bool plain = source.contiguous() && request.memory.contiguous();
  if (sane.ok() && !plain &&
      (source.width_bytes != request.memory.width_bytes ||
       source.height != request.memory.height)) {
    sane = {Code::kInvalidArgument,
            "the two sides of peer copy " + std::to_string(copy.id) +
                " have different shapes: the sender has " + std::to_string(source.height) +
                " rows of " + std::to_string(source.width_bytes) + " bytes, the receiver " +
                std::to_string(request.memory.height) + " rows of " +
                std::to_string(request.memory.width_bytes)};
  }
  if (!sane.ok()) {
    fail(copy, sane);
    return {};
  }
  const Result<PeerMapping*> mapping = map(request.device, pull.handle, pull.offset, source);
  if (!mapping) {
    RCUDA_INFO(
        "memory of peer %u cannot be mapped, so peer copy %llu goes through staging memory: "
        "%s",
        peer_, static_cast<unsigned long long>(copy.id), mapping.status().message().c_str());
    copy.choice = Choice::kChunks;
    TargetMessage message;
    message.copy = copy.id;
    message.refused = 1;
    return link.mailbox.send(message);
  }
  ++(*mapping)->uses;
  copy.mapped = pull.handle;
  source.address = (*mapping)->memory.base + pull.offset;
  const CopyBox box = box_between(request.memory, source);
  const Result<Ticket> ticket =
      environment_.lanes.copy(request.device, Lane::kLocal, {&box, 1}, request.memory.bytes());
  if (!ticket) {
    fail(copy, ticket.status());
    return {};
  }
  move(copy, IncomingEvent::kPull);
  note_landing(copy, {Lane::kLocal, *ticket, request.memory.bytes(), false});
  return {};
}

// Whether the copy may land: it has no predecessor, the predecessor is over, or the predecessor's
// announced chunks or its pull are queued in the same lane, which keeps the order.
bool Receiver::may_follow(const Incoming& copy, uint64_t predecessor) const {
  const auto found = copies_.find(predecessor);
  if (predecessor == 0 || found == copies_.end() || found->second.finished) return true;
  const Incoming& before = found->second;
  if (copy.choice == Choice::kPull) return before.state == IncomingState::kPulling;
  return before.choice != Choice::kPull && before.arrived.empty();
}

void Receiver::note_landing(Incoming& copy, const Landing& landing) {
  copy.landing.push_back(landing);
  ++environment_.landings;
  ++environment_.activity;
}

// Returns true if it started a chunk or the copy failed.
bool Receiver::start_landing(Incoming& copy, PeerLink& link) {
  bool started = false;
  while (!copy.arrived.empty() && !fails(copy.state)) {
    const ChunkMessage chunk = copy.arrived.front();
    const uint64_t total = copy.request->memory.bytes();
    if (chunk.total != total) {
      fail(copy, disagreement(copy.id, chunk.total, total));
      return true;
    }
    if (!may_follow(copy, chunk.predecessor)) break;
    const Result<bool> here = has_come(chunk, link);
    if (here && !*here) break;
    started = true;
    pop_arrived(copy);
    const Status begun = here ? land(copy, chunk, link) : here.status();
    if (!begun.ok()) {
      ++copy.consumed;
      fail(copy, begun);
    } else if (copy.state != IncomingState::kLanding) {
      move(copy, IncomingEvent::kChunk);
    }
  }
  return started;
}

// Whether the chunk has arrived. For a chunk with an immediate, returns true only once: then the
// immediate is forgotten.
Result<bool> Receiver::has_come(const ChunkMessage& chunk, PeerLink& link) {
  if (chunk.immediate == 0) return true;
  return link.arrivals.complete(chunk.immediate, chunk.bytes);
}

Status Receiver::land(Incoming& copy, const ChunkMessage& chunk, const PeerLink& link) {
  const PeerCopy& request = *copy.request;
  if (chunk.where == Where::kTarget || chunk.bytes == 0) {
    copy.landed += chunk.bytes;
    ++copy.consumed;
    return {};
  }
  Lane lane = Lane::kIn;
  uint64_t from = link.inbox.address() + chunk.slot;
  if (chunk.where == Where::kDeviceInbox) {
    const DeviceBuffer& inbox = link.device_inbox[static_cast<size_t>(request.device)];
    if (chunk.slot > inbox.bytes() || chunk.bytes > inbox.bytes() - chunk.slot) {
      return {Code::kProtocol, "the sender put a chunk of " + std::to_string(chunk.bytes) +
                                   " bytes at offset " + std::to_string(chunk.slot) +
                                   " of the inbox on device " + std::to_string(request.device) +
                                   ", which has " + std::to_string(inbox.bytes()) + " bytes"};
    }
    lane = Lane::kLocal;
    from = inbox.address() + chunk.slot;
  }
  const Boxes boxes = boxes_of(request.memory, chunk.offset, chunk.bytes, from, Direction::kUnpack);
  RCUDA_ASSIGN_OR_RETURN(const Ticket ticket,
                         environment_.lanes.copy(request.device, lane, boxes.span(), chunk.bytes));
  note_landing(copy, {lane, ticket, chunk.bytes, chunk.slot_wanted != 0});
  return {};
}

// Drops the chunks of a copy that the sender has aborted. A chunk that was sent is dropped only
// after its bytes have arrived, because then its slot can be reused. The bytes of chunks that were
// only announced never come.
Status Receiver::drop_arrived(Incoming& copy, PeerLink& link, bool& moved) {
  while (copy.consumed < copy.sent && !copy.arrived.empty()) {
    RCUDA_ASSIGN_OR_RETURN(const bool here, has_come(copy.arrived.front(), link));
    if (!here) return {};
    pop_arrived(copy);
    ++copy.consumed;
    moved = true;
  }
  while (!copy.arrived.empty()) pop_arrived(copy);
  if (copy.reported >= copy.sent) return {};
  moved = true;
  return report_consumed(copy, link, copy.sent);
}

Status Receiver::report_consumed(Incoming& copy, PeerLink& link, uint64_t chunks) {
  copy.reported = chunks;
  copy.slot_wanted = false;
  ConsumedMessage message;
  message.copy = copy.id;
  message.chunks = chunks;
  return link.mailbox.send(message, When::kNow, copy.chunk_bytes);
}

void Receiver::finish(Incoming& copy, PeerLink* link, const Status& status) {
  if (copy.target != transport::RegionId::kNone && link) (void)link->link->unexpose(copy.target);
  if (copy.mapped) {
    const auto mapping = mappings_.find({copy.request->device, *copy.mapped});
    if (mapping != mappings_.end()) --mapping->second.uses;
  }
  report(copy, status);
}

Status Receiver::close_forgotten(PeerLink* link, bool& moved) {
  for (auto at = mappings_.begin(); at != mappings_.end();) {
    const PeerMapping& mapping = at->second;
    if (!mapping.forget_request || mapping.uses > 0 || !environment_.ops.pause(Pause::kHolds)) {
      ++at;
      continue;
    }
    const uint64_t request = *mapping.forget_request;
    environment_.ops.close(at->first.first, mapping.memory.base);
    at = mappings_.erase(at);
    const bool more = std::any_of(mappings_.begin(), mappings_.end(), [&](const auto& entry) {
      return entry.second.forget_request == request;
    });
    if (!more) forgotten_.push_back(request);
    moved = true;
  }
  if (!link || !link->open) return {};
  while (!forgotten_.empty()) {
    ForgottenMessage message;
    message.request = forgotten_.front();
    forgotten_.pop_front();
    moved = true;
    RCUDA_RETURN_IF_ERROR(link->mailbox.send(message));
  }
  return {};
}

void Receiver::lose(const Status& why) {
  lost_ = why;
  for (auto& [id, copy] : copies_) {
    fail(copy, why, IncomingEvent::kPeerLost);
    while (!copy.arrived.empty()) pop_arrived(copy);
    awake_.insert(id);
  }
}

}  // namespace rcuda::p2p
