// Receiver: the incoming copies from one peer. A copy waits for the stream of this side, if it has
// one (and tells the sender: Ready), lets every chunk that arrived be copied in, tells the sender
// what it consumed, and ends with Done.
//
// Chunks may arrive before the client's command does; they wait in the inbox. A copy that fails
// lets what is under way end, says Done with the error, and is forgotten when the sender's Abort
// and all that it had sent have come. Used by the engine's thread alone; nothing blocks but
// registration (v1) and mapping (ipc).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "p2p/pipeline/environment.h"
#include "p2p/pipeline/peer_link.h"

namespace rcuda::p2p {

class Receiver {
 public:
  Receiver(Environment& environment, PeerId peer) : environment_(environment), peer_(peer) {}
  ~Receiver() { close_mappings(); }

  // `failure`: the copy could not take its place in the stream and ends with that.
  void add(PeerCopy copy, Order order, const Status& failure);

  // Messages of the peer; kProtocol when they cannot be.
  Status on_chunk(const ChunkMessage& message, const PeerLink& link);
  Status on_want(const WantMessage& message);
  Status on_pull(const PullMessage& message);
  Status on_abort(const EndMessage& message);
  Status on_forget(const ForgetMessage& message);

  // Moves every copy on as far as it gets; true when something happened. Errors are the mailbox's.
  Result<bool> advance(PeerLink* link);

  void lose(const Status& why);
  // In a pause: unmaps the memory of a peer that is lost. There are no copies any more.
  void close_mappings();
  bool empty() const { return copies_.empty(); }
  bool polling() const;

 private:
  using Handle = std::array<std::byte, ExportedMemory::kHandleBytes>;

  struct Landing {
    Lane lane = Lane::kIn;
    Ticket ticket = 0;
    uint64_t bytes = 0;
    bool place_wanted = false;
  };

  struct Incoming {
    uint64_t id = 0;
    std::optional<PeerCopy> request;  // none: the peer's half came first
    Order order = Order::kNone;
    bool reached = false;
    std::deque<ChunkMessage> arrived;  // announced, and not yet being copied in
    std::deque<Landing> landing;
    uint64_t next = 0;         // packed offset of the next chunk to arrive
    uint64_t landed = 0;       // bytes in place
    uint64_t chunk_bytes = 0;  // of the largest chunk so far
    bool any_chunk = false;    // of a copy of nothing: whether it was announced
    uint64_t consumed = 0;     // chunks landed, or of no use any more
    uint64_t told = 0;         // chunks the sender knows were consumed
    bool tell = false;         // it waits for the place of one more
    bool wanted = false;       // v1: a Want to answer
    transport::RegionId target = transport::RegionId::kNone;
    std::optional<PullMessage> pull;
    std::optional<Handle> pulling;  // the mapping in use
    bool refused = false;           // the Pull could not be followed, and chunks come
    Status failure;
    bool done_sent = false;
    bool aborted = false;
    uint64_t sent = 0;      // aborted: chunks that have come or are on their way
    bool finished = false;  // the client's half is over; only the sender's end of it is missing
  };

  struct Mapping {
    MappedMemory memory;
    uint32_t uses = 0;
    std::optional<uint64_t> forget_request;  // close when unused, then say Forgotten
  };

  Incoming& find_or_make(uint64_t id);  // and wakes it
  static bool dormant(const Incoming& copy);
  When when() const { return copies_.size() > 1 ? When::kSoon : When::kNow; }
  Status advance(Incoming& copy, PeerLink* link, bool& moved);
  Status answer_want(Incoming& copy, PeerLink& link);
  Status start_pull(Incoming& copy, PeerLink& link);
  bool may_land(const Incoming& copy, uint64_t after) const;
  bool start_landing(Incoming& copy, PeerLink& link);
  void note_landing(Incoming& copy, const Landing& landing);
  static Result<bool> has_come(const ChunkMessage& chunk, PeerLink& link);
  Status land(Incoming& copy, const ChunkMessage& chunk, const PeerLink& link);
  static Status tell_consumed(Incoming& copy, PeerLink& link, uint64_t chunks);
  static uint64_t most_arrived(const PeerLink& link);
  void pop_arrived(Incoming& copy);
  Status drop_arrived(Incoming& copy, PeerLink& link, bool& moved);
  Result<Mapping*> map(int device, const Handle& handle, uint64_t offset, const Shape& source);
  Status close_forgotten(PeerLink* link, bool& moved);
  void finish(Incoming& copy, PeerLink* link, const Status& status);

  Environment& environment_;
  const PeerId peer_;
  std::map<uint64_t, Incoming> copies_;
  uint64_t arrived_ = 0;      // Incoming::arrived of all copies
  std::set<uint64_t> awake_;  // of copies_: those that are not dormant, in the same order
  std::map<std::pair<int, Handle>, Mapping> mappings_;
  std::deque<uint64_t> forgotten_;  // requests to answer
  Status lost_;
};

}  // namespace rcuda::p2p
