// Half: the common base of Sender and Receiver. It holds the copies with one peer by id, and moves
// them from state to state. Used only by the engine thread.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "common/base/log.h"
#include "p2p/link/environment.h"
#include "p2p/link/messages.h"

namespace rcuda::p2p {

template <typename Copy, typename Event>
class Half {
 public:
  bool empty() const { return copies_.empty(); }
  // Whether a copy that is not over uses memory of this range.
  bool uses(DeviceAddress base, uint64_t bytes) const {
    return std::any_of(copies_.begin(), copies_.end(), [=](const auto& entry) {
      const Copy& copy = entry.second;
      return copy.request && !copy.finished && copy.request->memory.overlaps(base, bytes);
    });
  }
  // Whether a copy waits for a stream's progress, which must be polled.
  bool polling() const {
    return std::any_of(awake_.begin(), awake_.end(), [this](uint64_t id) {
      const Copy& copy = copies_.at(id);
      return copy.state == decltype(copy.state)::kWaiting && copy.place != StreamPlace::kNone;
    });
  }

 protected:
  Half(Environment& environment, PeerId peer) : environment_(environment), peer_(peer) {}

  // Whether `id` is a new copy and the limit is reached. Limits the memory that copies announced by
  // the peer can take.
  bool is_full(uint64_t id) const { return announced_ >= kMostCopies && !copies_.contains(id); }
  static Status too_many_copies() {
    return peer_violation("the peer worker has announced more than " + std::to_string(kMostCopies) +
                          " copies that the client has not begun on this side");
  }
  Copy& find_or_make(uint64_t id) {  // also adds it to awake_
    awake_.insert(id);
    const auto [at, is_new] = copies_.try_emplace(id);
    at->second.id = id;
    announced_ += is_new;
    return at->second;
  }
  // Adds this side's half, as the client sent it. `failure`: ok, or the error with which the half
  // ends. Returns null for a second half with the same id, which is an error of the client; the
  // first half continues.
  Copy* add_half(PeerCopy request, StreamPlace place, const Status& failure) {
    Copy& copy = find_or_make(request.id);
    if (copy.request) {
      const Status status(Code::kInvalidArgument, "the client began peer copy " +
                                                      std::to_string(request.id) + " with peer " +
                                                      std::to_string(peer_) + " twice");
      environment_.places.release(place, status);
      if (request.done) request.done(status);
      return nullptr;
    }
    --announced_;
    copy.place = place;
    copy.request = std::move(request);
    move(copy, Event::kCommand);
    if (!failure.ok()) fail(copy, failure);
    if (!lost_.ok()) fail(copy, lost_, Event::kPeerLost);
    return &copy;
  }
  // Moves the copy to its next state. The state must allow the event. A message of the peer may
  // arrive in any state, so the caller checks the state before the call.
  void move(Copy& copy, Event event) {
    const auto next = after(copy.state, event);
    assert(next);
    if (!next || *next == copy.state) return;
    RCUDA_DEBUG("peer copy %llu with peer %u: state %s becomes %s",
                static_cast<unsigned long long>(copy.id), peer_, to_string(copy.state),
                to_string(*next));
    copy.state = *next;
  }
  void fail(Copy& copy, const Status& why, Event event = Event::kFailure) {
    if (copy.failure.ok()) copy.failure = why;
    move(copy, event);
  }
  // Reports the end of the copy to the program.
  void report(Copy& copy, const Status& status) {
    copy.finished = true;
    environment_.places.release(copy.place, copy.request->reports ? status : Status());
    if (copy.request->done) copy.request->done(status);
  }

  static constexpr size_t kMostCopies = 1u << 16;

  Environment& environment_;
  const PeerId peer_;
  std::map<uint64_t, Copy> copies_;
  size_t announced_ = 0;  // copies without this side's half; too high once the peer is lost
  // The ids of the copies that may advance without a message of the peer. A round looks only at
  // these, because copies_ may have thousands of entries: copies that wait for an earlier copy in
  // the same stream, or copies whose half on this side has not arrived.
  std::set<uint64_t> awake_;
  Status lost_;
};

}  // namespace rcuda::p2p
