// Sender: the outgoing copies to one peer. p2p/pipeline/copy_state.h has the states of a copy and
// draws them. sender.cpp moves copies from state to state, sender_chunks.cpp has their chunks.
//
// Chunks are copied out, shipped, announced and consumed; Done gives back the places of the last
// ones. A chunk that tells of its arrival is announced when its copy-out begins. So its message is
// there sooner than its bytes, and one frame announces all chunks that begin together.
//
// A copy that fails starts nothing more, lets what is under way end, and sends Abort. It is over
// when Done has come and the receiver has consumed all that it was sent. Then its places are given
// back. A lost peer needs no Done.
// Used by the engine's thread alone; nothing blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "p2p/pipeline/copy_state.h"
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

  // One more in a counter for as long as this lasts. The counter outlives it.
  class Count {
   public:
    Count() = default;
    Count(const Count&) = delete;
    Count& operator=(const Count&) = delete;
    ~Count() {
      if (counter_) --*counter_;
    }
    void take(uint32_t& counter) { ++*(counter_ = &counter); }
    bool held() const { return counter_ != nullptr; }

   private:
    uint32_t* counter_ = nullptr;
  };

  struct Outgoing {
    uint64_t id = 0;
    std::optional<PeerCopy> request;  // none: the peer's half came first
    Order order = Order::kNone;
    uint64_t before = 0;  // the copy right before in the stream, if it goes to the same peer
    uint64_t after = 0;   // the same if they overlap: its chunks come first
    uint64_t behind = 0;  // the copy that sleeps until this one has begun
    CopyState state = CopyState::kAnnounced;
    Status failure;            // the first, of a state that fails()
    bool peer_ready = false;   // Ready has come, which it may in any state
    std::optional<Plan> plan;  // from kPlanned on, and before if the copy may overlap
    Path* path = nullptr;
    std::unique_ptr<DirectPath> direct;
    ExportedMemory exported;                                   // ipc: the source
    transport::RegionId exposed = transport::RegionId::kNone;  // v1: the source, registered
    uint64_t total = 0;
    uint64_t next = 0;          // packed bytes started so far
    std::deque<Chunk> flight;   // chunks [gone, gone + size)
    uint64_t gone = 0;          // chunks consumed and at their transfers' ends
    uint64_t consumed = 0;      // chunks
    Count running;              // in Environment::running_copies, from its beginning to its end
    Count ending, ending_here;  // in ending_copies and ending_, since it has sent everything
    transport::Company company = transport::Company::kMany;
  };

  Outgoing& find_or_make(uint64_t id);
  static void move(Outgoing& copy, CopyEvent event);
  static void fail(Outgoing& copy, const Status& why, CopyEvent event = CopyEvent::kFailure);
  Status advance(Outgoing& copy, PeerLink* link, bool& moved);
  Status begin(Outgoing& copy, PeerLink& link, bool& moved);
  Result<bool> end(Outgoing& copy, PeerLink* link, bool& moved);
  void rest(Outgoing& copy);
  bool first_in_line(const Outgoing& copy) const;
  bool has_legs(const Outgoing& copy) const;
  bool has_reached(Outgoing& copy, PeerLink& link);
  bool may_overlap(Outgoing& copy, PeerLink& link);
  void plan(Outgoing& copy, PeerLink& link, bool in_train);
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
  static bool quiet(const Outgoing& copy);
  static void release_front(Outgoing& copy);
  static void drop_back(Outgoing& copy);
  static void release_consumed(Outgoing& copy);
  void finish(Outgoing& copy, PeerLink* link, const Status& status);

  Environment& environment_;
  const PeerId peer_;
  uint32_t ending_ = 0;  // of copies_: have sent everything
  std::map<uint64_t, Outgoing> copies_;
  // Those that may move on by themselves. A program may have queued hundreds in one stream: behind
  // one that waits, all do; and the peer may have said Ready to as many before they come.
  std::set<uint64_t> awake_;
  uint64_t turn_ = 0;  // the copy after which the next chunk's turn begins
  Status lost_;
};

}  // namespace rcuda::p2p
