#include "p2p/pipeline/sender.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "common/base/log.h"
#include "p2p/paths/device_region.h"

namespace rcuda::p2p {
namespace {

// Halves of copies the peer may announce before this side's client did. A session that gets here
// has lost its client's commands.
constexpr size_t kMostCopies = 1u << 16;

Status unknown_copy(const char* what, uint64_t copy) {
  return {Code::kProtocol,
          std::string(what) + " for copy " + std::to_string(copy) + ", which is not under way"};
}

}  // namespace

Sender::Outgoing& Sender::find_or_make(uint64_t id) {
  awake_.insert(id);
  Outgoing& copy = copies_[id];
  copy.id = id;
  return copy;
}

void Sender::add(PeerCopy request, Order order, uint64_t before, const Status& failure) {
  Outgoing& copy = find_or_make(request.id);
  if (copy.request) {
    // The client's mistake; the first of the two goes on.
    const Status status(Code::kInvalidArgument, "two peer copies with one id");
    environment_.orders.release(order, status);
    if (request.done) request.done(status);
    return;
  }
  copy.total = request.memory.bytes();
  copy.order = order;
  copy.before = before;
  copy.request = std::move(request);
  copy.failure = failure;
  if (!lost_.ok() && copy.failure.ok()) copy.failure = lost_;
}

Status Sender::on_ready(uint64_t id) {
  if (copies_.size() >= kMostCopies) return {Code::kProtocol, "too many copies announced"};
  Outgoing& copy = find_or_make(id);
  copy.peer_ready = true;
  copy.held_up |= copy.phase != Phase::kWaiting && copy.request && copy.request->peer_has_stream;
  return {};
}

Status Sender::on_consumed(const ConsumedMessage& message) {
  const auto found = copies_.find(message.copy);
  if (found == copies_.end()) return unknown_copy("Consumed", message.copy);
  Outgoing& copy = found->second;
  if (message.chunks < copy.consumed || message.chunks > with_peer(copy)) {
    return {Code::kProtocol, "a peer consumed chunks it was not sent"};
  }
  copy.consumed = message.chunks;
  release_consumed(copy);
  return {};
}

Status Sender::on_target(const TargetMessage& message, PeerLink& link) {
  const auto found = copies_.find(message.copy);
  if (found == copies_.end()) return unknown_copy("Target", message.copy);
  Outgoing& copy = found->second;
  const bool pulled = copy.phase == Phase::kEnding && copy.plan.strategy == Strategy::kIpc;
  if (pulled && message.refused != 0) {
    stage_instead(copy, link, "the peer could not map the source");
    return {};
  }
  if (copy.phase != Phase::kAsking) return unknown_copy("Target", message.copy);
  const Shape& memory = copy.request->memory;
  Status refused;
  if (message.refused != 0) {
    refused = {Code::kUnsupported, "the destination could not be registered"};
  } else {
    const auto own = expose_device_memory(environment_.ops, *link.link, copy.request->device,
                                          memory.address, copy.total, For::kThisSide);
    if (own) {
      copy.exposed = own->id;
      copy.direct = std::make_unique<DirectPath>(*link.link, memory.address, copy.total,
                                                 transport::RegionId{message.region});
      copy.path = copy.direct.get();
      copy.plan.chunking = {copy.total, 1};
      copy.phase = Phase::kSending;
      return {};
    }
    refused = own.status();
  }
  stage_instead(copy, link, refused.context());
  return {};
}

void Sender::plan_staged(Outgoing& copy, const std::string& why) {
  RCUDA_DEBUG("peer copies to worker %u: v4b stands in for %s, as %s", peer_,
              to_string(copy.plan.strategy), why.c_str());
  copy.plan.strategy = Strategy::kV4b;
  copy.plan.chunking = paper_chunking(Strategy::kV4b, copy.total);
  copy.held_up = true;
}

void Sender::stage_instead(Outgoing& copy, PeerLink& link, const std::string& why) {
  plan_staged(copy, why);
  awake_.insert(copy.id);
  begin_staged(copy, link);
}

Status Sender::on_done(const EndMessage& message) {
  const Status status = status_of(message);
  const auto found = copies_.find(message.copy);
  if (found == copies_.end()) {
    // A receiver may end its half before this side's client sent the other.
    if (status.ok()) return unknown_copy("Done", message.copy);
    if (copies_.size() >= kMostCopies) return {Code::kProtocol, "too many copies announced"};
  }
  Outgoing& copy = find_or_make(message.copy);
  if (copy.done) return {Code::kProtocol, "a peer ended a copy twice"};
  if (status.ok()) {
    const bool sent =
        copy.phase == Phase::kEnding ||
        (copy.phase == Phase::kSending && copy.next == copy.total && all_with_peer(copy));
    if (!sent) return {Code::kProtocol, "a peer ended a copy it does not have"};
  }
  copy.done = status;
  return {};
}

Result<bool> Sender::advance(PeerLink* link) {
  bool moved = false;
  const bool lost = !lost_.ok();
  for (auto at = awake_.begin(); at != awake_.end();) {
    Outgoing& copy = copies_.at(*at);
    if (waits_behind(copy)) {
      at = awake_.erase(at);
      continue;
    }
    RCUDA_RETURN_IF_ERROR(advance(copy, link, moved));
    if (copy.running && !copy.ending && all_sent(copy)) {
      copy.ending = true;
      ++ending_;
      ++environment_.ending_copies;
    }
    bool over = false;
    if (copy.request && quiet(copy)) {
      if (lost) {
        finish(copy, link, copy.done && copy.done->ok() ? Status() : copy.failure);
        over = true;
      } else if (copy.done && copy.done->ok()) {
        finish(copy, link, {});
        over = true;
      } else if (copy.done || !copy.failure.ok()) {
        if (copy.failure.ok()) copy.failure = *copy.done;
        const bool may_abort = !copy.abort_sent && link && link->open;
        if (may_abort) RCUDA_RETURN_IF_ERROR(abort(copy, *link, moved));
        if (copy.done && copy.abort_sent && copy.consumed == with_peer(copy)) {
          finish(copy, link, copy.failure);
          over = true;
        }
      }
    } else if (!copy.request && lost) {
      over = true;
    }
    moved |= over;
    if (copy.behind != 0 && (over || copy.phase != Phase::kWaiting)) {
      const uint64_t behind = std::exchange(copy.behind, 0);
      // It may have failed at the peer, and be over, without ever having begun.
      if (copies_.contains(behind)) awake_.insert(behind);
    }
    if (over) copies_.erase(*at);
    at = over || (!lost && dormant(copy)) ? awake_.erase(at) : std::next(at);
  }
  return moved;
}

// Whether the copy right before it in its stream has yet to begin, which then wakes this one.
bool Sender::waits_behind(const Outgoing& copy) {
  if (copy.before == 0 || copy.phase != Phase::kWaiting || !copy.failure.ok() || copy.done) {
    return false;
  }
  const auto before = copies_.find(copy.before);
  if (before == copies_.end() || before->second.phase != Phase::kWaiting) return false;
  before->second.behind = copy.id;
  return true;
}

// Whether only a message of the peer, or the client's half, can move the copy on.
bool Sender::dormant(const Outgoing& copy) {
  if (!copy.failure.ok() || copy.done) return false;
  const bool all_started =
      copy.phase == Phase::kEnding || (copy.phase == Phase::kSending && copy.next == copy.total);
  return !copy.request || (all_started && all_with_peer(copy));
}

Status Sender::advance(Outgoing& copy, PeerLink* link, bool& moved) {
  if (!copy.request) return {};
  const bool ending = !copy.failure.ok() || (copy.done && !copy.done->ok());
  if (copy.phase == Phase::kWaiting && !ending && link && link->open) {
    RCUDA_RETURN_IF_ERROR(begin(copy, *link, moved));
  }
  return advance_chunks(copy, link, moved);
}

Status Sender::begin(Outgoing& copy, PeerLink& link, bool& moved) {
  const PeerCopy& request = *copy.request;
  if (!copy.reached) {
    if (!has_reached(copy, link)) return {};
    moved = true;
    if (!copy.failure.ok()) return {};
    copy.reached = true;
  }
  if (link.probing) return {};
  if (!copy.planned) {
    moved = true;
    plan(copy, link, has_legs(copy) ? Copies::kAlone : Copies::kWithOthers);
    if (!copy.failure.ok()) return {};
  }
  // Copying out reads the source, which must not be before the destination's stream is there. And
  // chunks take up the peer's inbox: if its half of the copy is not there yet, which may wait for
  // other copies, none may wait for the place. The first in line may go ahead, since nothing that
  // is before it in the order of commands can wait for those behind; and those that have sent
  // everything need no place any more. Otherwise the receiver waits by itself, before it pulls or
  // offers its memory.
  const bool staged = copy.total > 0 && staging_of(copy.plan.strategy) != Staging::kNone;
  if (staged && !copy.peer_ready && (request.peer_has_stream || !first_in_line(copy))) return {};
  moved = true;

  copy.running = true;
  copy.alone = has_legs(copy);
  ++environment_.running_copies;
  ++environment_.activity;
  if (!copy.alone) ++environment_.crowd;
  copy.crowd = environment_.crowd;
  copy.began_us = environment_.now_us();

  if (copy.total == 0) {
    ChunkMessage empty;
    empty.copy = copy.id;
    copy.phase = Phase::kEnding;
    return link.mailbox.send(empty);
  }
  switch (copy.plan.strategy) {
    case Strategy::kIpc:
      return begin_pull(copy, link);
    case Strategy::kV1: {
      copy.phase = Phase::kAsking;
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
                                  [](const auto& entry) { return !entry.second.ending; });
  return first->first == copy.id;
}

// Whether no other copy is in its way. The next one of a program that waits for each copy comes
// before the Done of the last, which the program hears of sooner.
bool Sender::has_legs(const Outgoing& copy) const {
  const bool waited_for = copy.order == Order::kNone && !copy.request->peer_has_stream;
  return environment_.running_copies == (waited_for ? environment_.ending_copies : 0);
}

// Whether the stream got to the copy, or may be taken as there; or asking failed.
bool Sender::has_reached(Outgoing& copy, PeerLink& link) {
  copy.overlaps = copy.order != Order::kNone && may_overlap(copy, link);
  if (copy.order == Order::kNone || copy.overlaps) return true;
  const Result<bool> reached = environment_.orders.reached(copy.order);
  if (!reached) copy.failure = reached.status();
  return !reached || *reached;
}

// A copy right behind another one in its stream need not wait for the other's end where both take
// the same lanes, which are in order, at either side. Chunks on a wire may overtake one another:
// they are announced in order.
bool Sender::may_overlap(Outgoing& copy, PeerLink& link) {
  if (copy.before == 0 || copy.request->peer_has_stream || link.probing) return false;
  const auto found = copies_.find(copy.before);
  if (found == copies_.end()) return false;
  const Outgoing& before = found->second;
  if (!before.request || before.request->peer_has_stream || !before.failure.ok() || before.done ||
      before.total == 0 || before.request->device != copy.request->device ||
      before.request->peer_device != copy.request->peer_device) {
    return false;
  }
  const bool pulled = before.phase == Phase::kEnding && before.plan.strategy == Strategy::kIpc;
  const bool staged = before.phase == Phase::kSending && before.next == before.total &&
                      before.path->in_host_memory();
  if (!pulled && !staged) return false;
  if (!copy.planned) plan(copy, link, Copies::kInTrain);
  if (!copy.failure.ok() || copy.total == 0) return false;
  return pulled ? copy.plan.strategy == Strategy::kIpc
                : staging_of(copy.plan.strategy) == Staging::kHost;
}

// Whether the copy before this one, which it overlaps with, has yet to announce chunks.
bool Sender::must_not_overtake(const Outgoing& copy) const {
  const auto found = copy.before == 0 ? copies_.end() : copies_.find(copy.before);
  if (found == copies_.end()) return false;
  const Outgoing& before = found->second;
  return before.phase == Phase::kSending && before.failure.ok() && !before.done &&
         (before.next != before.total ||
          std::any_of(before.flight.begin(), before.flight.end(),
                      [](const Chunk& chunk) { return !chunk.announced; }));
}

void Sender::plan(Outgoing& copy, PeerLink& link, Copies when) {
  const PeerCopy& request = *copy.request;
  copy.planned = true;
  if (static_cast<uint32_t>(request.peer_device) >= link.offer.device_count) {
    copy.failure = {Code::kInvalidArgument,
                    "the peer has no device " + std::to_string(request.peer_device)};
    return;
  }
  if (copy.total == 0) return;
  Planner& planner = link.planner(request.device, request.peer_device);
  Result<Plan> plan = planner.ready_plan(copy.total, request.memory.contiguous(), when);
  if (!plan) {
    copy.failure = plan.status();
    return;
  }
  copy.plan = *std::move(plan);
  RCUDA_DEBUG("peer copy %llu of %s to worker %u: %s", static_cast<unsigned long long>(copy.id),
              bytes_text(copy.total).c_str(), peer_, to_string(copy.plan).c_str());
  if (copy.plan.strategy != Strategy::kIpc) return;
  Result<ExportedMemory> exported =
      environment_.ops.export_memory(request.device, request.memory.address);
  if (exported) {
    copy.exported = *exported;
    return;
  }
  plan_staged(copy, exported.status().context());
}

void Sender::begin_staged(Outgoing& copy, PeerLink& link) {
  const PeerCopy& request = *copy.request;
  Chunking& chunking = copy.plan.chunking;
  chunking.depth = std::max<uint32_t>(chunking.depth, 1);
  chunking.chunk_bytes = std::min(chunking.chunk_bytes, copy.total);
  copy.path = link.host_path.get();
  if (staging_of(copy.plan.strategy) == Staging::kDevice) {
    if (Path* path = link.device_path(request.device, request.peer_device)) copy.path = path;
  }
  chunking.chunk_bytes = std::clamp<uint64_t>(chunking.chunk_bytes, 1, copy.path->capacity_bytes());
  copy.phase = Phase::kSending;
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
  pull.device = static_cast<uint32_t>(request.device);
  pull.copy = copy.id;
  pull.handle = exported.handle;
  pull.offset = exported.offset;
  pull.width_bytes = request.memory.width_bytes;
  pull.height = request.memory.height;
  pull.depth = request.memory.depth;
  pull.pitch_bytes = request.memory.pitch_bytes;
  pull.slice_bytes = request.memory.slice_bytes;
  pull.after = copy.overlaps ? copy.before : 0;
  copy.phase = Phase::kEnding;
  return link.mailbox.send(pull);
}

bool Sender::start_chunk(PeerLink& link) {
  auto at = awake_.upper_bound(turn_);
  for (size_t left = awake_.size(); left > 0; --left, ++at) {
    if (at == awake_.end()) at = awake_.begin();
    Outgoing& copy = copies_.at(*at);
    if (copy.phase != Phase::kSending) continue;
    if (!copy.failure.ok() || copy.done || copy.next == copy.total) continue;
    if (copy.flight.size() >= copy.plan.chunking.depth) continue;
    const uint64_t bytes = std::min(copy.plan.chunking.chunk_bytes, copy.total - copy.next);
    const PeerCopy& request = *copy.request;
    const Lane lane = copy.path->in_host_memory() ? Lane::kOut : Lane::kLocal;
    if (copy.path->copies_out() && !environment_.lanes.has_room(request.device, lane, bytes)) {
      continue;
    }
    const auto place = copy.path->reserve(copy.next, bytes);
    // The copy whose turn it is waits for room at the front: smaller chunks do not overtake it for
    // ever.
    if (!place) return false;

    Chunk chunk{copy.next, *place, Stage::kCopyingOut, lane, 0};
    if (copy.path->tells_arrival()) {
      chunk.immediate = link.last_immediate = std::max(link.last_immediate + 1, 1u);
    }
    if (copy.path->copies_out()) {
      const Boxes boxes =
          boxes_of(request.memory, copy.next, bytes, place->local, Direction::kPack);
      const Result<Ticket> ticket =
          environment_.lanes.copy(request.device, lane, boxes.span(), bytes);
      if (!ticket) {
        copy.path->release(*place);
        copy.failure = ticket.status();
        return true;
      }
      chunk.ticket = *ticket;
    }
    copy.flight.push_back(chunk);
    copy.next += bytes;
    turn_ = copy.id;
    if (!copy.path->copies_out()) {
      ship(copy, copy.flight.back(), copy.gone + copy.flight.size() - 1, link);
    }
    return true;
  }
  return false;
}

void Sender::ship(Outgoing& copy, Chunk& chunk, uint64_t number, PeerLink& link) {
  chunk.stage = chunk.immediate != 0 ? Stage::kSent : Stage::kShipping;
  chunk.under_way = true;
  const auto company = copy.alone ? transport::Company::kAlone : transport::Company::kMany;
  copy.path->ship(chunk.place, chunk.immediate, company, link.begin_shipment(copy.id, number));
}

void Sender::shipped(const Shipment& shipment) {
  const auto found = copies_.find(shipment.copy);
  if (found == copies_.end()) return;
  Outgoing& copy = found->second;
  if (shipment.number < copy.gone || shipment.number - copy.gone >= copy.flight.size()) return;
  Chunk& chunk = copy.flight[shipment.number - copy.gone];
  chunk.under_way = false;
  if (chunk.stage == Stage::kShipping) {
    chunk.stage = shipment.status.ok() ? Stage::kSent : Stage::kKept;
  }
  if (!shipment.status.ok() && copy.failure.ok()) copy.failure = shipment.status;
  release_consumed(copy);
  awake_.insert(copy.id);
}

Status Sender::advance_chunks(Outgoing& copy, PeerLink* link, bool& moved) {
  const bool ending = !copy.failure.ok() || copy.done.has_value() || !lost_.ok();
  for (size_t i = 0; i < copy.flight.size(); ++i) {
    Chunk& chunk = copy.flight[i];
    if (chunk.stage != Stage::kCopyingOut) continue;
    const Result<bool> finished =
        environment_.lanes.finished(copy.request->device, chunk.lane, chunk.ticket);
    if (!finished) {
      if (copy.failure.ok()) copy.failure = finished.status();
      chunk.stage = Stage::kKept;
      moved = true;
      continue;
    }
    if (!*finished) break;  // the lane is in order
    moved = true;
    if (ending || !copy.failure.ok() || !link) {
      chunk.stage = Stage::kKept;
    } else if (copy.path->ships()) {
      ship(copy, chunk, copy.gone + i, *link);
    } else {
      chunk.stage = Stage::kSent;
    }
  }
  if (ending || !copy.failure.ok() || !link || must_not_overtake(copy)) return {};
  return announce(copy, *link, moved);
}

// Those that have arrived, and those that tell of that themselves.
Status Sender::announce(Outgoing& copy, PeerLink& link, bool& moved) {
  const bool crowd = copies_.size() > ending_ + 1;
  const auto announces = [](const Chunk& chunk) {
    return chunk.stage == Stage::kSent || chunk.immediate != 0;
  };
  for (size_t i = 0; i < copy.flight.size() && announces(copy.flight[i]); ++i) {
    Chunk& chunk = copy.flight[i];
    if (chunk.announced) continue;
    ChunkMessage message;
    message.where = copy.path->where();
    message.copy = copy.id;
    message.offset = chunk.offset;
    message.bytes = chunk.place.bytes;
    message.place = chunk.place.remote;
    message.total = copy.total;
    message.immediate = chunk.immediate;
    message.place_wanted = crowd || copy.next != copy.total ? 1 : 0;
    message.after = copy.overlaps ? copy.before : 0;
    const bool more = i + 1 < copy.flight.size() && announces(copy.flight[i + 1]);
    RCUDA_RETURN_IF_ERROR(
        link.mailbox.send(message, crowd || more ? When::kSoon : When::kNow, chunk.place.bytes));
    chunk.announced = true;
    moved = true;
  }
  return {};
}

// The receiver must know of all that is on its way, in whatever order it lands.
Status Sender::abort(Outgoing& copy, PeerLink& link, bool& moved) {
  const auto sent = [](const Chunk& chunk) { return chunk.stage == Stage::kSent; };
  while (!copy.flight.empty() && !sent(copy.flight.back())) drop_back(copy);
  RCUDA_RETURN_IF_ERROR(announce(copy, link, moved));
  EndMessage message = make_end(MessageKind::kAbort, copy.id, copy.failure);
  message.chunks = with_peer(copy);
  copy.abort_sent = true;
  moved = true;
  return link.mailbox.send(message);
}

// How many chunks the receiver has been sent and told of.
uint64_t Sender::with_peer(const Outgoing& copy) {
  const auto first_other = std::find_if(copy.flight.begin(), copy.flight.end(),
                                        [](const Chunk& chunk) { return !chunk.with_peer(); });
  return copy.gone + static_cast<uint64_t>(first_other - copy.flight.begin());
}

bool Sender::all_with_peer(const Outgoing& copy) {
  return with_peer(copy) == copy.gone + copy.flight.size();
}

bool Sender::all_sent(const Outgoing& copy) {
  return copy.phase == Phase::kSending && copy.next == copy.total && all_with_peer(copy) &&
         quiet(copy);
}

bool Sender::quiet(const Outgoing& copy) {
  return std::none_of(copy.flight.begin(), copy.flight.end(), [](const Chunk& chunk) {
    return chunk.stage == Stage::kCopyingOut || chunk.under_way;
  });
}

void Sender::release_front(Outgoing& copy) {
  copy.path->release(copy.flight.front().place);
  copy.flight.pop_front();
  ++copy.gone;
}

void Sender::drop_back(Outgoing& copy) {
  copy.path->release(copy.flight.back().place);
  copy.flight.pop_back();
}

// A chunk may be consumed before this side's end of its transfer is known, which may use the place
// until then.
void Sender::release_consumed(Outgoing& copy) {
  while (copy.gone < copy.consumed && !copy.flight.front().under_way) release_front(copy);
}

void Sender::finish(Outgoing& copy, PeerLink* link, const Status& status) {
  while (!copy.flight.empty()) release_front(copy);
  if (copy.direct && link) (void)link->link->unexpose(copy.exposed);
  const double took_us = copy.running ? environment_.now_us() - copy.began_us : 0;
  if (!status.ok()) {
    RCUDA_DEBUG("peer copy %llu to worker %u: %s", static_cast<unsigned long long>(copy.id), peer_,
                status.message().c_str());
  }
  environment_.orders.release(copy.order, status);
  if (copy.request->done) copy.request->done(status);
  // Nobody waits any more.
  if (!copy.running) return;
  --environment_.running_copies;
  if (copy.ending) {
    --ending_;
    --environment_.ending_copies;
  }
  if (status.ok() && link && link->open && copy.alone && copy.crowd == environment_.crowd &&
      copy.total > 0 && !copy.held_up) {
    link->planner(copy.request->device, copy.request->peer_device)
        .observe(copy.plan, copy.total, took_us);
  }
}

void Sender::lose(const Status& why) {
  lost_ = why;
  for (auto& [id, copy] : copies_) {
    if (copy.failure.ok()) copy.failure = why;
    awake_.insert(id);
  }
}

bool Sender::polling() const {
  return std::any_of(awake_.begin(), awake_.end(), [this](uint64_t id) {
    const Outgoing& copy = copies_.at(id);
    return copy.request && copy.phase == Phase::kWaiting && !copy.reached &&
           copy.order != Order::kNone && copy.failure.ok() && !copy.done;
  });
}

}  // namespace rcuda::p2p
