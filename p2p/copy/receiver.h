// Receiver: the incoming copies from one peer. p2p/copy/incoming_state.h has the states of a copy
// and a drawing of them. If the copy has a place in a stream of this worker, it waits until the
// stream reaches the place. The receiver then sends Ready to the sender. Every chunk that has
// arrived is copied in, consumed chunks are reported to the sender, and the copy ends with Done.
//
// Chunks may arrive before the client's half; they wait in the inbox. A copy that fails lets
// transfers in progress end and sends Done with the error. The copy is over when the sender's Abort
// and all chunks that the sender had sent have arrived. Used only by the engine thread. Nothing
// blocks except registering, mapping and unmapping memory, and Link::put while the send queue is
// full.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "p2p/copy/half.h"
#include "p2p/copy/incoming_state.h"
#include "p2p/link/environment.h"
#include "p2p/link/peer_link.h"

namespace rcuda::p2p {

// One incoming copy.
struct Incoming {
  using Handle = std::array<std::byte, ExportedMemory::kHandleBytes>;

  struct Landing {
    Lane lane = Lane::kIn;
    Ticket ticket = 0;
    uint64_t bytes = 0;
    bool slot_wanted = false;
  };

  // How the sender has chosen to transfer the copy. After the answer to a Want, or the refusal of a
  // Pull, the choice is kChunks.
  enum class Choice : uint8_t { kNone, kWant, kPull, kChunks };

  uint64_t id = 0;
  std::optional<PeerCopy> request;  // none: the peer's half came first
  StreamPlace place = StreamPlace::kNone;
  IncomingState state = IncomingState::kAnnounced;
  Status failure;         // the first error; set when fails(state)
  bool finished = false;  // the end was reported; waits only for the sender
  Choice choice = Choice::kNone;
  PullMessage pull;                                         // kPull
  std::optional<Handle> mapped;                             // kPull: the mapping in use
  transport::RegionId target = transport::RegionId::kNone;  // the destination, if registered
  std::deque<ChunkMessage> arrived;                         // announced; not yet being copied in
  std::deque<Landing> landing;
  uint64_t next = 0;         // offset in the packed bytes of the next chunk to be announced
  uint64_t landed = 0;       // bytes at their destination
  uint64_t chunk_bytes = 0;  // of the largest chunk so far
  uint64_t consumed = 0;     // chunks that have landed or are dropped
  uint64_t reported = 0;     // the value of `consumed` last sent in Consumed
  bool slot_wanted = false;  // the sender waits for the slot of a landed chunk
  uint64_t sent = 0;         // after Abort: chunks that have arrived or are in flight
};

class Receiver : public Half<Incoming, IncomingEvent> {
 public:
  Receiver(Environment& environment, PeerId peer) : Half(environment, peer) {}
  ~Receiver() { close_mappings(); }

  // `failure`: ok, or an error. After an error the copy has no place in the stream, and ends with
  // this error.
  void add(PeerCopy copy, StreamPlace place, const Status& failure) {
    (void)add_half(std::move(copy), place, failure);
  }

  // Messages of the peer. kProtocol if a message is impossible in the current state.
  Status on_chunk(const ChunkMessage& message, const PeerLink& link);
  Status on_want(const WantMessage& message);
  Status on_pull(const PullMessage& message);
  Status on_abort(const EndMessage& message);
  Status on_forget(const ForgetMessage& message);

  // Advances every copy as far as possible. Returns true if something happened. Errors are those of
  // the mailbox.
  Result<bool> advance(PeerLink* link);

  // The peer is lost: every copy ends with `why` when its own transfers have ended.
  void lose(const Status& why);
  // Unmaps the memory of a lost peer. Call it in a pause, when no copies are left.
  void close_mappings();

 private:
  using Choice = Incoming::Choice;
  using Handle = Incoming::Handle;
  using Landing = Incoming::Landing;

  struct PeerMapping {
    MappedMemory memory;
    uint32_t uses = 0;
    std::optional<uint64_t> forget_request;  // the sender's Forget: close when unused, then answer
  };

  Result<Incoming*> begin_choice(uint64_t id, Choice choice);
  static uint64_t announced(const Incoming& copy);
  static bool is_over(const Incoming& copy);
  static bool dormant(const Incoming& copy);
  When when() const { return copies_.size() > 1 ? When::kSoon : When::kNow; }
  Status advance(Incoming& copy, PeerLink* link, bool& moved);
  Status await_stream(Incoming& copy, PeerLink* open, bool& moved);
  bool collect_landed(Incoming& copy);
  Status end(Incoming& copy, PeerLink* link, PeerLink* open, bool& moved);
  Status answer_want(Incoming& copy, PeerLink& link);
  Status start_pull(Incoming& copy, PeerLink& link);
  bool may_follow(const Incoming& copy, uint64_t predecessor) const;
  bool start_landing(Incoming& copy, PeerLink& link);
  void note_landing(Incoming& copy, const Landing& landing);
  static Result<bool> has_come(const ChunkMessage& chunk, PeerLink& link);
  Status land(Incoming& copy, const ChunkMessage& chunk, const PeerLink& link);
  static Status report_consumed(Incoming& copy, PeerLink& link, uint64_t chunks);
  uint64_t most_arrived(const PeerLink& link) const;
  void pop_arrived(Incoming& copy);
  Status drop_arrived(Incoming& copy, PeerLink& link, bool& moved);
  Result<PeerMapping*> map(int device, const Handle& handle, uint64_t offset, const Shape& source);
  Status close_forgotten(PeerLink* link, bool& moved);
  void finish(Incoming& copy, PeerLink* link, const Status& status);

  uint64_t arrived_ = 0;  // the sum of the sizes of Incoming::arrived
  std::map<std::pair<int, Handle>, PeerMapping> mappings_;
  std::deque<uint64_t> forgotten_;  // requests to answer with Forgotten
};

}  // namespace rcuda::p2p
