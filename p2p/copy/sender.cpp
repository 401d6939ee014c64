#include "p2p/copy/sender.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <string>
#include <utility>

#include "common/base/log.h"
#include "common/base/units.h"
#include "p2p/staging/device_region.h"

namespace rcuda::p2p {
namespace {

Status violation(uint64_t copy, const std::string& what) {
  return peer_violation("peer copy " + std::to_string(copy) + ": the receiver sent " + what);
}

Status unknown_copy(const char* message, uint64_t copy) {
  return violation(copy, std::string(message) + ", but the copy does not wait for it");
}

}  // namespace

void Sender::add(PeerCopy request, StreamPlace place, uint64_t predecessor, const Status& failure) {
  const uint64_t bytes = request.memory.bytes();
  if (Outgoing* const copy = add_half(std::move(request), place, failure)) {
    copy->total = bytes;
    copy->predecessor = predecessor;
  }
}

Status Sender::on_ready(const ReadyMessage& message) {
  if (is_full(message.copy)) return too_many_copies();
  find_or_make(message.copy).peer_ready = true;
  return {};
}

Status Sender::on_consumed(const ConsumedMessage& message) {
  const auto found = copies_.find(message.copy);
  if (found == copies_.end()) return unknown_copy("Consumed", message.copy);
  Outgoing& copy = found->second;
  if (message.chunks < copy.consumed || message.chunks > with_peer(copy)) {
    return violation(message.copy, "Consumed for " + std::to_string(message.chunks) +
                                       " chunks; valid are " + std::to_string(copy.consumed) +
                                       " (already consumed) to " + std::to_string(with_peer(copy)) +
                                       " (sent)");
  }
  copy.consumed = message.chunks;
  release_consumed(copy);
  return {};
}

Status Sender::on_target(const TargetMessage& message, PeerLink& link) {
  const auto found = copies_.find(message.copy);
  if (found == copies_.end()) return unknown_copy("Target", message.copy);
  Outgoing& copy = found->second;
  if (copy.state == CopyState::kPulling && message.refused != 0) {
    stage_instead(copy, link, "the peer worker could not map the source, see its log");
    return {};
  }
  if (copy.state != CopyState::kAsking) return unknown_copy("Target", message.copy);
  const Shape& memory = copy.request->memory;
  Status refused;
  if (message.refused != 0) {
    refused = {Code::kUnsupported,
               "the peer worker could not register the destination for GPUDirect, see its log"};
  } else {
    // Register the source without a pause: see pause.h, rule 4.
    const auto own = expose_device_memory(environment_.ops, *link.link, copy.request->device,
                                          memory.address, copy.total, For::kThisSide);
    if (own) {
      copy.exposed = own->id;
      copy.direct =
          Path::direct(*link.link, memory.address, copy.total, transport::RegionId{message.region});
      copy.path = &*copy.direct;
      copy.plan->chunking = {copy.total, 1};
      move(copy, CopyEvent::kStage);
      return {};
    }
    refused = own.status();
  }
  stage_instead(copy, link, refused.context());
  return {};
}

void Sender::plan_in_host(Outgoing& copy, PeerLink& link, const std::string& why) {
  const PeerCopy& request = *copy.request;
  Result<Plan> plan =
      link.planner(request.device, request.peer_device).plan_in_host(copy.total, why);
  if (!plan) return fail(copy, plan.status());
  copy.plan = *std::move(plan);
  log_plan(copy);
}

void Sender::stage_instead(Outgoing& copy, PeerLink& link, const std::string& why) {
  awake_.insert(copy.id);
  plan_in_host(copy, link, why);
  if (!fails(copy.state)) begin_staged(copy, link);
}

Status Sender::on_done(const EndMessage& message) {
  const Status status = status_of(message);
  const auto found = copies_.find(message.copy);
  if (found == copies_.end()) {
    // A receiver may end its half before this side's half has come from the client.
    if (status.ok()) return unknown_copy("Done", message.copy);
    if (is_full(message.copy)) return too_many_copies();
  }
  Outgoing& copy = find_or_make(message.copy);
  const bool ended = copy.state == CopyState::kDone || copy.state == CopyState::kRefused ||
                     copy.state == CopyState::kClosing;
  if (ended) return violation(message.copy, "Done twice");
  if (!status.ok()) {
    fail(copy, status, CopyEvent::kRefusal);
    return {};
  }
  const bool sent = copy.state == CopyState::kPulling || copy.state == CopyState::kSent ||
                    (copy.total > 0 && copy.next == copy.total && all_with_peer(copy));
  if (!sent) {
    return violation(message.copy, "Done before this side has sent all bytes (" +
                                       std::to_string(copy.next) + " of " +
                                       std::to_string(copy.total) + ")");
  }
  move(copy, CopyEvent::kDone);
  return {};
}

Result<bool> Sender::advance(PeerLink* link) {
  bool moved = false;
  for (auto at = awake_.begin(); at != awake_.end();) {
    Outgoing& copy = copies_.at(*at);
    if (waits_for_predecessor(copy)) {
      at = awake_.erase(at);
      continue;
    }
    RCUDA_RETURN_IF_ERROR(advance(copy, link, moved));
    RCUDA_ASSIGN_OR_RETURN(const bool over, end(copy, link, moved));
    moved |= over;
    if (copy.successor != 0 && (over || copy.running.held())) {
      const uint64_t successor = std::exchange(copy.successor, 0);
      // The successor may be over without having begun, because it failed at the peer.
      if (copies_.contains(successor)) awake_.insert(successor);
    }
    const bool sleeps = over || (lost_.ok() && dormant(copy));
    if (over) copies_.erase(*at);
    at = sleeps ? awake_.erase(at) : std::next(at);
  }
  return moved;
}

// Ends the copy if possible. Returns true when it is over.
Result<bool> Sender::end(Outgoing& copy, PeerLink* link, bool& moved) {
  if (!copy.request) return !lost_.ok();
  if (!quiet(copy)) return false;
  if (owes_abort(copy.state) && link && link->open) {
    RCUDA_RETURN_IF_ERROR(abort(copy, *link, moved));
  }
  const bool over = copy.state == CopyState::kDone || copy.state == CopyState::kLost ||
                    (copy.state == CopyState::kClosing && copy.consumed == with_peer(copy));
  if (over) finish(copy, link, copy.state == CopyState::kDone ? Status() : copy.failure);
  return over;
}

// Whether the predecessor has not yet begun. If so, the predecessor wakes this copy when it begins.
bool Sender::waits_for_predecessor(const Outgoing& copy) {
  if (copy.predecessor == 0 || !before_begin(copy.state)) return false;
  const auto before = copies_.find(copy.predecessor);
  if (before == copies_.end() || before->second.running.held()) return false;
  before->second.successor = copy.id;
  return true;
}

// Whether only a message of the peer, or the client's half, can advance the copy.
bool Sender::dormant(const Outgoing& copy) {
  switch (copy.state) {
    case CopyState::kAnnounced:
    case CopyState::kSent:
    case CopyState::kPulling:
      return true;
    case CopyState::kSending:
      return copy.next == copy.total && all_with_peer(copy);
    default:
      return false;
  }
}

Status Sender::advance(Outgoing& copy, PeerLink* link, bool& moved) {
  if (!copy.request) return {};
  if (before_begin(copy.state) && link && link->open) {
    RCUDA_RETURN_IF_ERROR(begin(copy, *link, moved));
  }
  RCUDA_RETURN_IF_ERROR(advance_chunks(copy, link, moved));
  const bool all_sent = copy.state == CopyState::kSending && copy.next == copy.total &&
                        all_with_peer(copy) && quiet(copy);
  if (all_sent) rest(copy);
  return {};
}

// Called when the copy has sent everything: moves it to kSent and counts it as ending.
void Sender::rest(Outgoing& copy) {
  move(copy, CopyEvent::kAllSent);
  copy.ending.take(environment_.ending_copies);
  copy.ending_here.take(ending_);
}

Status Sender::begin(Outgoing& copy, PeerLink& link, bool& moved) {
  const PeerCopy& request = *copy.request;
  if (copy.state == CopyState::kWaiting) {
    if (!has_reached(copy, link)) return {};
    moved = true;
    if (fails(copy.state)) return {};
    move(copy, CopyEvent::kStreamReached);
  }
  if (link.unanswered > 0) return {};
  if (copy.state == CopyState::kReached) {
    moved = true;
    if (!copy.plan) plan(copy, link, false);
    if (fails(copy.state)) return {};
    move(copy, CopyEvent::kPlan);
  }
  // A staged copy begins before Ready only if no stream of the destination must reach it first, and
  // if it is first in line. The reasons:
  //  - Copy-out reads the source, and CUDA allows this only after the destination's stream has
  //    reached the copy.
  //  - The copy's chunks occupy slots in the peer's inbox until the peer's half has come, and that
  //    half may wait for other copies. So these other copies must not need the slots. The first in
  //    line may begin, because commands before it never wait for a later copy. Copies that have
  //    sent everything need no slot any more and do not count.
  //
  // Copies without staging begin now. Their receiver waits for its stream before it pulls or offers
  // its memory.
  const bool staged = copy.total > 0 && has_buffers(copy.plan->staging);
  if (staged && !copy.peer_ready && (request.peer_has_stream || !first_in_line(copy))) return {};
  moved = true;

  copy.company = has_legs(copy) ? transport::Company::kAlone : transport::Company::kMany;
  copy.running.take(environment_.running_copies);
  ++environment_.activity;

  if (copy.total == 0) {
    ChunkMessage empty;
    empty.copy = copy.id;
    rest(copy);
    return link.mailbox.send(empty);
  }
  switch (copy.plan->staging) {
    case Staging::kMapped:
      return begin_pull(copy, link);
    case Staging::kRegistered: {
      move(copy, CopyEvent::kWant);
      WantMessage want;
      want.copy = copy.id;
      return link.mailbox.send(want);
    }
    default:
      begin_staged(copy, link);
      return {};
  }
}

bool Sender::first_in_line(const Outgoing& copy) const {
  const auto first = std::find_if(copies_.begin(), copies_.end(),
                                  [](const auto& entry) { return !entry.second.ending.held(); });
  return first->first == copy.id;
}

// Whether no other copy uses the legs. If a program waits for each copy, the next copy comes before
// the Done of the previous copy, because the receiver notifies the program first. Such a previous
// copy does not count.
bool Sender::has_legs(const Outgoing& copy) const {
  const bool waited_for = copy.place == StreamPlace::kNone && !copy.request->peer_has_stream;
  return environment_.running_copies == (waited_for ? environment_.ending_copies : 0);
}

// Returns true if the stream has reached the copy, if the copy may overlap with its predecessor, or
// if the query of the stream has failed.
bool Sender::has_reached(Outgoing& copy, PeerLink& link) {
  if (copy.place == StreamPlace::kNone) return true;
  if (may_overlap(copy, link)) {
    copy.overlapped = copy.predecessor;
    return true;
  }
  const Result<bool> reached = environment_.places.reached(copy.place);
  if (!reached) fail(copy, reached.status());
  return !reached || *reached;
}

// Whether the copy may begin before its predecessor in the stream has ended. It may if both use the
// same lanes at both ends, because lanes are in order. Chunks on a wire may overtake one another,
// so the chunks of both copies are announced in order.
bool Sender::may_overlap(Outgoing& copy, PeerLink& link) {
  if (copy.predecessor == 0 || copy.request->peer_has_stream || link.unanswered > 0) return false;
  const auto found = copies_.find(copy.predecessor);
  if (found == copies_.end()) return false;
  const Outgoing& before = found->second;
  if (!before.request || before.request->peer_has_stream || before.total == 0 ||
      before.request->device != copy.request->device ||
      before.request->peer_device != copy.request->peer_device) {
    return false;
  }
  const bool pulled = before.state == CopyState::kPulling;
  const bool sending = before.state == CopyState::kSending || before.state == CopyState::kSent;
  const bool staged = sending && before.next == before.total && before.path->in_host_memory();
  if (!pulled && !staged) return false;
  if (!copy.plan) plan(copy, link, true);
  if (fails(copy.state) || copy.total == 0) return false;
  return copy.plan->staging == (pulled ? Staging::kMapped : Staging::kHost);
}

void Sender::plan(Outgoing& copy, PeerLink& link, bool in_train) {
  const PeerCopy& request = *copy.request;
  copy.plan.emplace();
  if (static_cast<uint32_t>(request.peer_device) >= link.offer.device_count) {
    return fail(copy, {Code::kInvalidArgument,
                       "peer copy " + std::to_string(copy.id) + " goes to device " +
                           std::to_string(request.peer_device) + " of the peer worker, which has " +
                           std::to_string(link.offer.device_count) + " devices"});
  }
  if (copy.total == 0) return;
  Planner& planner = link.planner(request.device, request.peer_device);
  Result<Plan> plan = in_train ? planner.plan_in_train(copy.total, request.memory.contiguous())
                               : planner.plan(copy.total, request.memory.contiguous());
  if (!plan) return fail(copy, plan.status());
  copy.plan = *std::move(plan);
  log_plan(copy);
  if (copy.plan->staging != Staging::kMapped) return;
  Result<ExportedMemory> exported =
      environment_.ops.export_memory(request.device, request.memory.address);
  if (exported) {
    copy.exported = *exported;
    return;
  }
  plan_in_host(copy, link, exported.status().context());
}

void Sender::log_plan(const Outgoing& copy) const {
  RCUDA_DEBUG("peer copy %llu of %s to peer %u: %s", static_cast<unsigned long long>(copy.id),
              bytes_text(copy.total).c_str(), peer_, to_string(*copy.plan).c_str());
}

void Sender::begin_staged(Outgoing& copy, PeerLink& link) {
  const PeerCopy& request = *copy.request;
  Chunking& chunking = copy.plan->chunking;
  chunking.depth = std::max<uint32_t>(chunking.depth, 1);
  chunking.chunk_bytes = std::min(chunking.chunk_bytes, copy.total);
  std::optional<Path>& in_device = link.pair(request.device, request.peer_device).device_path;
  const bool by_device = copy.plan->staging == Staging::kDevice && in_device;
  copy.path = by_device ? &*in_device : &*link.host_path;
  chunking.chunk_bytes = std::clamp<uint64_t>(chunking.chunk_bytes, 1, copy.path->bytes);
  move(copy, CopyEvent::kStage);
}

Status Sender::begin_pull(Outgoing& copy, PeerLink& link) {
  const PeerCopy& request = *copy.request;
  const ExportedMemory& exported = copy.exported;
  const DeviceAddress base = request.memory.address - exported.offset;
  auto known = std::find_if(environment_.exported.begin(), environment_.exported.end(),
                            [&](const Exported& entry) { return entry.handle == exported.handle; });
  if (known == environment_.exported.end()) {
    environment_.exported.push_back({request.device, base, exported.handle, {}});
    known = std::prev(environment_.exported.end());
  }
  if (std::find(known->peers.begin(), known->peers.end(), peer_) == known->peers.end()) {
    known->peers.push_back(peer_);
  }
  PullMessage pull;
  pull.copy = copy.id;
  pull.handle = exported.handle;
  pull.offset = exported.offset;
  pull.width_bytes = request.memory.width_bytes;
  pull.height = request.memory.height;
  pull.depth = request.memory.depth;
  pull.pitch_bytes = request.memory.pitch_bytes;
  pull.slice_bytes = request.memory.slice_bytes;
  pull.predecessor = copy.overlapped;
  move(copy, CopyEvent::kPull);
  return link.mailbox.send(pull);
}

void Sender::finish(Outgoing& copy, PeerLink* link, const Status& status) {
  while (!copy.flight.empty()) release_front(copy);
  if (copy.direct && link) (void)link->link->unexpose(copy.exposed);
  if (!status.ok()) {
    RCUDA_DEBUG("peer copy %llu to peer %u failed: %s", static_cast<unsigned long long>(copy.id),
                peer_, status.message().c_str());
  }
  // Before report(), so that a program that has seen the end of the copy also finds it counted.
  if (status.ok() && copy.plan && environment_.options.on_sent) {
    environment_.options.on_sent(*copy.plan);
  }
  report(copy, status);
}

void Sender::lose(const Status& why) {
  lost_ = why;
  for (auto& [id, copy] : copies_) {
    fail(copy, why, CopyEvent::kPeerLost);
    awake_.insert(id);
  }
}

}  // namespace rcuda::p2p
