#include "p2p/engine/core.h"

#include <algorithm>
#include <utility>

namespace rcuda::p2p {

Core::Core(DeviceOps& ops, EngineOptions options, std::function<uint64_t()> now_ns,
           std::function<void()> wake)
    : environment_(ops, std::move(options), std::move(now_ns), std::move(wake)) {}

Core::~Core() {
  for (const auto& peer : peers_) {
    peer->lose({Code::kUnavailable, "this worker's session has ended"});
  }
  // DMA in progress must end before its memory is freed. The loop ends even if a device stops
  // responding, because the driver then reports an error.
  while (environment_.lanes.busy() ||
         std::any_of(peers_.begin(), peers_.end(),
                     [](const auto& peer) { return peer->link() || !peer->idle(); })) {
    run_round();
  }
  (void)release_unused();
  // The result does not matter: the session ends, and no stream is held any more.
  (void)environment_.ops.pause(Pause::kWork);
  peers_.clear();
  environment_.drop_device_memory();
  environment_.ops.resume();
}

Peer& Core::peer(PeerId id) {
  const auto found = std::find_if(peers_.begin(), peers_.end(),
                                  [&](const auto& peer) { return peer->id() == id; });
  if (found != peers_.end()) return **found;
  peers_.push_back(std::make_unique<Peer>(environment_, id));
  return *peers_.back();
}

void Core::copy(PeerCopy copy, StreamPlace place, const Status& failure) {
  Peer& other = peer(copy.peer);
  environment_.places.add(place, copy.stream.value_or(StreamRef{}));
  uint64_t predecessor = 0;
  if (place != StreamPlace::kNone && copy.stream && copy.hold) {
    const bool follows = copy.stream->follows && copy.outgoing && last_hold_.outgoing &&
                         last_hold_.peer == copy.peer;
    if (follows) predecessor = last_hold_.id;
    last_hold_ = {copy.id, copy.peer, copy.outgoing};
  }
  other.add(std::move(copy), place, predecessor, failure);
}

void Core::release_memory(MemoryRelease release) {
  releases_.push_back(std::move(release));
  (void)release_unused();
}

bool Core::in_use(const MemoryRelease& memory) const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [&](const auto& peer) { return peer->uses(memory.base, memory.bytes); });
}

// Makes the peers unmap memory that no copy uses any more. A copy in progress may use the peers'
// mappings, so its memory stays in the list.
bool Core::release_unused() {
  std::list<MemoryRelease> unused;
  for (auto at = releases_.begin(); at != releases_.end();) {
    const auto next = std::next(at);
    if (!in_use(*at)) unused.splice(unused.end(), releases_, at);
    at = next;
  }
  for (MemoryRelease& release : unused) unmap(std::move(release));
  return !unused.empty();
}

void Core::unmap(MemoryRelease release) {
  const auto [base, bytes, done] = std::move(release);
  // The number of outstanding answers, plus one while requests are being sent.
  auto missing = std::make_shared<size_t>(1);
  const auto answered = [missing, done = done] {
    if (--*missing == 0 && done) done();
  };
  auto& exported = environment_.exported;
  for (size_t i = 0; i < exported.size();) {
    if (exported[i].base < base || exported[i].base - base >= bytes) {
      ++i;
      continue;
    }
    const Exported gone = std::move(exported[i]);
    exported.erase(exported.begin() + static_cast<std::ptrdiff_t>(i));
    for (const PeerId id : gone.peers) {
      ++*missing;
      peer(id).forget(gone, answered);
    }
  }
  answered();
}

bool Core::run_round() {
  environment_.places.next_round();
  bool moved = environment_.lanes.refresh();
  for (Transfer& transfer : environment_.transfers->take()) {
    moved = true;
    peer(transfer.peer).transferred(transfer);
  }
  for (const Arrival& arrival : environment_.arrivals->take()) {
    moved = true;
    peer(arrival.peer).arrived(arrival);
  }
  for (const auto& peer : peers_) moved |= peer->receive();
  for (const auto& peer : peers_) moved |= peer->advance();
  // Start chunks one at a time. The peer after the peer that started the last chunk goes first.
  bool started = true;
  while (started) {
    started = false;
    for (size_t i = 0; i < peers_.size() && !started; ++i) {
      const size_t index = (turn_ + i) % peers_.size();
      started = peers_[index]->start_chunk();
      if (started) turn_ = (index + 1) % peers_.size();
    }
    moved |= started;
  }
  moved |= release_unused();
  environment_.ops.resume();
  return moved;
}

bool Core::polling() const {
  return environment_.lanes.busy() || std::any_of(peers_.begin(), peers_.end(),
                                                  [](const auto& peer) { return peer->polling(); });
}

bool Core::pending() const {
  return !environment_.transfers->empty() || !environment_.arrivals->empty() ||
         std::any_of(peers_.begin(), peers_.end(),
                     [](const auto& peer) { return peer->pending(); });
}

}  // namespace rcuda::p2p
