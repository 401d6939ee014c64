// The chunks of outgoing copies: copy-out, transfer, announcement, and the release of their slots.
#include <algorithm>

#include "p2p/copy/sender.h"

namespace rcuda::p2p {

bool Sender::start_chunk(PeerLink& link) {
  auto at = awake_.upper_bound(turn_);
  for (size_t left = awake_.size(); left > 0; --left, ++at) {
    if (at == awake_.end()) at = awake_.begin();
    Outgoing& copy = copies_.at(*at);
    if (copy.state != CopyState::kSending || copy.next == copy.total) continue;
    if (copy.flight.size() >= copy.plan->chunking.depth) continue;
    const uint64_t bytes = std::min(copy.plan->chunking.chunk_bytes, copy.total - copy.next);
    const PeerCopy& request = *copy.request;
    const Lane lane = copy.path->in_host_memory() ? Lane::kOut : Lane::kLocal;
    if (copy.path->copies_out() && !environment_.lanes.has_room(request.device, lane, bytes)) {
      continue;
    }
    const auto slot = copy.path->reserve(copy.next, bytes);
    // This copy waits for a slot, and the other copies wait too. Otherwise their smaller chunks
    // could take every slot that becomes free.
    if (!slot) return false;

    Chunk chunk{copy.next, *slot, Stage::kCopyingOut, lane, 0};
    if (copy.path->tells_arrival()) {
      chunk.immediate = link.last_immediate = std::max(link.last_immediate + 1, 1u);
    }
    if (copy.path->copies_out()) {
      const Boxes boxes = boxes_of(request.memory, copy.next, bytes, slot->local, Direction::kPack);
      const Result<Ticket> ticket =
          environment_.lanes.copy(request.device, lane, boxes.span(), bytes);
      if (!ticket) {
        copy.path->release(*slot);
        fail(copy, ticket.status());
        return true;
      }
      chunk.ticket = *ticket;
    }
    copy.flight.push_back(chunk);
    copy.next += bytes;
    turn_ = copy.id;
    if (!copy.path->copies_out()) {
      transfer(copy, copy.flight.back(), copy.gone + copy.flight.size() - 1, link);
    }
    return true;
  }
  return false;
}

void Sender::transfer(Outgoing& copy, Chunk& chunk, uint64_t number, PeerLink& link) {
  chunk.stage = chunk.immediate != 0 ? Stage::kSent : Stage::kTransferring;
  chunk.under_way = true;
  copy.path->transfer(chunk.slot, chunk.immediate, copy.company,
                      link.begin_transfer(copy.id, number));
}

void Sender::transferred(const Transfer& transfer) {
  const auto found = copies_.find(transfer.copy);
  if (found == copies_.end()) return;
  Outgoing& copy = found->second;
  if (transfer.number < copy.gone || transfer.number - copy.gone >= copy.flight.size()) return;
  Chunk& chunk = copy.flight[transfer.number - copy.gone];
  chunk.under_way = false;
  if (chunk.stage == Stage::kTransferring) {
    chunk.stage = transfer.status.ok() ? Stage::kSent : Stage::kKept;
  }
  if (!transfer.status.ok()) fail(copy, transfer.status);
  release_consumed(copy);
  awake_.insert(copy.id);
}

// Whether the predecessor must still announce chunks.
bool Sender::must_not_overtake(const Outgoing& copy) const {
  const auto found = copy.predecessor == 0 ? copies_.end() : copies_.find(copy.predecessor);
  if (found == copies_.end()) return false;
  const Outgoing& before = found->second;
  return before.state == CopyState::kSending &&
         (before.next != before.total ||
          std::any_of(before.flight.begin(), before.flight.end(),
                      [](const Chunk& chunk) { return !chunk.announced; }));
}

Status Sender::advance_chunks(Outgoing& copy, PeerLink* link, bool& moved) {
  for (size_t i = 0; i < copy.flight.size(); ++i) {
    Chunk& chunk = copy.flight[i];
    if (chunk.stage != Stage::kCopyingOut) continue;
    const Result<bool> finished =
        environment_.lanes.finished(copy.request->device, chunk.lane, chunk.ticket);
    if (!finished) {
      fail(copy, finished.status());
      chunk.stage = Stage::kKept;
      moved = true;
      continue;
    }
    if (!*finished) break;  // a lane finishes its copies in order
    moved = true;
    if (copy.state != CopyState::kSending || !link) {
      chunk.stage = Stage::kKept;
    } else if (copy.path->needs_transfer()) {
      transfer(copy, chunk, copy.gone + i, *link);
    } else {
      chunk.stage = Stage::kSent;
    }
  }
  if (copy.state != CopyState::kSending || !link || must_not_overtake(copy)) return {};
  return announce(copy, *link, moved);
}

// Announces chunks in order, up to the first that has neither arrived at the receiver nor reports
// its own arrival.
Status Sender::announce(Outgoing& copy, PeerLink& link, bool& moved) {
  const bool crowd = copies_.size() > ending_ + 1;
  const auto announces = [](const Chunk& chunk) {
    return chunk.stage == Stage::kSent || chunk.immediate != 0;
  };
  for (size_t i = 0; i < copy.flight.size() && announces(copy.flight[i]); ++i) {
    Chunk& chunk = copy.flight[i];
    if (chunk.announced) continue;
    ChunkMessage message;
    message.where = copy.path->where;
    message.copy = copy.id;
    message.offset = chunk.offset;
    message.bytes = chunk.slot.bytes;
    message.slot = chunk.slot.remote;
    message.total = copy.total;
    message.immediate = chunk.immediate;
    message.slot_wanted = crowd || copy.next != copy.total ? 1 : 0;
    message.predecessor = copy.overlapped;
    const bool more = i + 1 < copy.flight.size() && announces(copy.flight[i + 1]);
    RCUDA_RETURN_IF_ERROR(
        link.mailbox.send(message, crowd || more ? When::kSoon : When::kNow, chunk.slot.bytes));
    chunk.announced = true;
    moved = true;
  }
  return {};
}

// Before Abort, announces every chunk that was sent. The receiver must know all chunks in flight,
// in whatever order they land.
Status Sender::abort(Outgoing& copy, PeerLink& link, bool& moved) {
  const auto sent = [](const Chunk& chunk) { return chunk.stage == Stage::kSent; };
  while (!copy.flight.empty() && !sent(copy.flight.back())) drop_back(copy);
  RCUDA_RETURN_IF_ERROR(announce(copy, link, moved));
  EndMessage message = make_end(MessageKind::kAbort, copy.id, copy.failure);
  message.chunks = with_peer(copy);
  move(copy, CopyEvent::kAbort);
  moved = true;
  return link.mailbox.send(message);
}

// Returns the number of chunks, from the first, that have been sent and announced.
uint64_t Sender::with_peer(const Outgoing& copy) {
  const auto first_other = std::find_if(copy.flight.begin(), copy.flight.end(),
                                        [](const Chunk& chunk) { return !chunk.with_peer(); });
  return copy.gone + static_cast<uint64_t>(first_other - copy.flight.begin());
}

bool Sender::all_with_peer(const Outgoing& copy) {
  return with_peer(copy) == copy.gone + copy.flight.size();
}

bool Sender::quiet(const Outgoing& copy) {
  return std::none_of(copy.flight.begin(), copy.flight.end(), [](const Chunk& chunk) {
    return chunk.stage == Stage::kCopyingOut || chunk.under_way;
  });
}

void Sender::release_front(Outgoing& copy) {
  copy.path->release(copy.flight.front().slot);
  copy.flight.pop_front();
  ++copy.gone;
}

void Sender::drop_back(Outgoing& copy) {
  copy.path->release(copy.flight.back().slot);
  copy.next = copy.flight.back().offset;
  copy.flight.pop_back();
}

// Releases the slots of consumed chunks. The receiver may report a chunk as consumed before this
// side knows that the chunk's transfer has ended; until then the transfer may use the slot.
void Sender::release_consumed(Outgoing& copy) {
  while (copy.gone < copy.consumed && !copy.flight.front().under_way) release_front(copy);
}

}  // namespace rcuda::p2p
