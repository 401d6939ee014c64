// Sender: the outgoing copies to one peer, each a small state machine.
//
// Waiting: for the Link, for the source's stream, and if it is staged for the destination's
// (Ready). Asking (v1 only): for the destination's registration (Target). Sending: its chunks are
// copied out, shipped, announced and consumed; the last one's Done ends the copy. Ending: there is
// nothing to send, because the receiver pulls the bytes or there are none, and Done is to come.
//
// A chunk that tells of its arrival is announced when its copy-out begins: its message is there
// sooner than its bytes, and one frame has those of all chunks that begin together.
//
// A copy that fails starts nothing more, lets what is under way end, says Abort, and is over when
// Done has come and the receiver has all that was sent; then its places are given back. A lost peer
// needs no Done.
// Used by the engine's thread alone; nothing blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "p2p/pipeline/environment.h"
#include "p2p/pipeline/peer_link.h"

namespace rcuda::p2p {

class Sender {
 public:
  Sender(Environment& environment, PeerId peer) : environment_(environment), peer_(peer) {}

  // `before`: see Peer::add. `failure`: the copy could not take its place in the stream and ends
  // with that.
  void add(PeerCopy copy, Order order, uint64_t before, const Status& failure);

  // Messages of the peer; kProtocol when they cannot be.
  Status on_ready(uint64_t copy);
  Status on_consumed(const ConsumedMessage& message);
  Status on_target(const TargetMessage& message, PeerLink& link);
  Status on_done(const EndMessage& message);

  // Moves every copy on as far as it gets; true when something happened. Errors are the mailbox's.
  Result<bool> advance(PeerLink* link);
  // Starts at most one chunk, of the copy whose turn it is.
  bool start_chunk(PeerLink& link);
  void shipped(const Shipment& shipment);

  // The peer is gone: every copy ends with this once its own transfers have.
  void lose(const Status& why);
  bool empty() const { return copies_.empty(); }
  // Whether there is nothing to do but to wait for the Done of copies that have sent everything.
  bool resting() const { return copies_.size() == ending_; }
  // Whether some copy waits for what only asking tells (a stream's progress).
  bool polling() const;

 private:
  enum class Phase : uint8_t { kWaiting, kAsking, kSending, kEnding };
  // kSent: there, or on its way and telling of its arrival; kKept: to be sent no more.
  enum class Stage : uint8_t { kCopyingOut, kShipping, kSent, kKept };

  struct Chunk {
    uint64_t offset = 0;
    Place place;
    Stage stage = Stage::kCopyingOut;
    Lane lane = Lane::kOut;
    Ticket ticket = 0;
    uint32_t immediate = 0;  // if it tells of its arrival
    bool under_way = false;  // the Link has not ended its transfer
    bool announced = false;
    bool with_peer() const { return announced && stage == Stage::kSent; }
  };

  struct Outgoing {
    uint64_t id = 0;
    std::optional<PeerCopy> request;  // none: the peer's half came first
    Order order = Order::kNone;
    uint64_t before = 0;    // the copy right before in the stream, if it goes to the same peer
    bool overlaps = false;  // with `before`, whose chunks it must not overtake
    uint64_t behind = 0;    // the copy that sleeps until this one has begun
    bool reached = false;
    bool peer_ready = false;
    bool planned = false;
    // The receiver may have waited for its stream, or the plan is not the planner's: what it takes
    // tells nothing.
    bool held_up = false;
    Phase phase = Phase::kWaiting;
    Plan plan;
    Path* path = nullptr;
    std::unique_ptr<DirectPath> direct;
    ExportedMemory exported;                                   // ipc: the source
    transport::RegionId exposed = transport::RegionId::kNone;  // v1: the source, registered
    uint64_t total = 0;
    uint64_t next = 0;         // packed bytes started so far
    std::deque<Chunk> flight;  // chunks [gone, gone + size)
    uint64_t gone = 0;         // chunks consumed and at their transfers' ends
    uint64_t consumed = 0;     // chunks
    bool running = false;      // counted in Environment::running_copies
    bool ending = false;       // and in ending_copies
    bool alone = false;
    uint64_t crowd = 0;
    double began_us = 0;
    Status failure;
    bool abort_sent = false;
    std::optional<Status> done;
  };

  Outgoing& find_or_make(uint64_t id);
  Status advance(Outgoing& copy, PeerLink* link, bool& moved);
  Status begin(Outgoing& copy, PeerLink& link, bool& moved);
  bool first_in_line(const Outgoing& copy) const;
  bool has_legs(const Outgoing& copy) const;
  bool has_reached(Outgoing& copy, PeerLink& link);
  bool may_overlap(Outgoing& copy, PeerLink& link);
  void plan(Outgoing& copy, PeerLink& link, Copies when);
  void begin_staged(Outgoing& copy, PeerLink& link);
  // For memory that this side or the peer cannot export, register or map: in host memory, with
  // published constants.
  void plan_staged(Outgoing& copy, const std::string& why);
  void stage_instead(Outgoing& copy, PeerLink& link, const std::string& why);
  Status begin_pull(Outgoing& copy, PeerLink& link);
  Status advance_chunks(Outgoing& copy, PeerLink* link, bool& moved);
  Status announce(Outgoing& copy, PeerLink& link, bool& moved);
  Status abort(Outgoing& copy, PeerLink& link, bool& moved);
  void ship(Outgoing& copy, Chunk& chunk, uint64_t number, PeerLink& link);
  bool must_not_overtake(const Outgoing& copy) const;
  bool waits_behind(const Outgoing& copy);
  static bool dormant(const Outgoing& copy);
  static uint64_t with_peer(const Outgoing& copy);
  static bool all_with_peer(const Outgoing& copy);
  static bool all_sent(const Outgoing& copy);
  static bool quiet(const Outgoing& copy);
  static void release_front(Outgoing& copy);
  static void drop_back(Outgoing& copy);
  static void release_consumed(Outgoing& copy);
  void finish(Outgoing& copy, PeerLink* link, const Status& status);

  Environment& environment_;
  const PeerId peer_;
  std::map<uint64_t, Outgoing> copies_;
  // Those that may move on by themselves. A program may have queued hundreds in one stream: behind
  // one that waits, all do; and the peer may have said Ready to as many before they come.
  std::set<uint64_t> awake_;
  size_t ending_ = 0;  // of copies_
  uint64_t turn_ = 0;  // the copy after which the next chunk's turn begins
  Status lost_;
};

}  // namespace rcuda::p2p
