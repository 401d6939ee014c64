// Sender: the outgoing copies to one peer. p2p/copy/copy_state.h has the states of a copy and a
// drawing of them. sender.cpp moves copies from state to state, sender_chunks.cpp handles their
// chunks.
//
// A chunk is copied out, transferred, announced and consumed. Done frees the slots that were not
// yet reported as consumed. A chunk with an immediate is announced when its copy-out begins. So the
// announcement arrives before the bytes, and one frame announces all chunks that begin together.
//
// A copy that fails starts nothing more, lets transfers in progress end, and sends Abort. The copy
// is over when Done has arrived and the receiver has consumed all chunks that were sent. Then the
// copy's slots are free. If the peer is lost, no Done is needed. Used only by the engine thread.
// Nothing blocks except registering the source, and Link::put while the send queue is full.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "p2p/copy/copy_state.h"
#include "p2p/copy/half.h"
#include "p2p/link/environment.h"
#include "p2p/link/peer_link.h"

namespace rcuda::p2p {

// One outgoing copy.
struct Outgoing {
  // kSent: the chunk's bytes have arrived, or are in flight with an immediate. kKept: the copy-out
  // or the transfer of the chunk failed, or the copy failed before the transfer.
  enum class Stage : uint8_t { kCopyingOut, kTransferring, kSent, kKept };

  struct Chunk {
    uint64_t offset = 0;
    Slot slot;
    Stage stage = Stage::kCopyingOut;
    Lane lane = Lane::kOut;
    Ticket ticket = 0;
    uint32_t immediate = 0;  // nonzero if the chunk reports its own arrival
    bool under_way = false;  // the Link's transfer of the chunk has not ended
    bool announced = false;
    bool with_peer() const { return announced && stage == Stage::kSent; }
  };

  // Increments a counter in take() and decrements it in the destructor. The counter outlives the
  // object.
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

  uint64_t id = 0;
  std::optional<PeerCopy> request;  // none: the peer's half came first
  StreamPlace place = StreamPlace::kNone;
  uint64_t predecessor = 0;  // the copy directly before it in the stream, if to the same peer
  uint64_t overlapped = 0;   // the predecessor, if the two overlap; its chunks are announced first
  uint64_t successor = 0;    // the copy that sleeps until this one begins
  CopyState state = CopyState::kAnnounced;
  bool finished = false;     // the end has been reported to the program
  Status failure;            // the first error; set when fails(state)
  bool peer_ready = false;   // Ready has come; it may come in any state
  std::optional<Plan> plan;  // from kPlanned on; earlier if the copy may overlap
  Path* path = nullptr;
  std::optional<Path> direct;
  ExportedMemory exported;                                   // ipc: the source
  transport::RegionId exposed = transport::RegionId::kNone;  // the source, if registered
  uint64_t total = 0;
  uint64_t next = 0;          // packed bytes started so far
  std::deque<Chunk> flight;   // the chunks from number `gone` on
  uint64_t gone = 0;          // chunks that are consumed and whose transfers have ended
  uint64_t consumed = 0;      // number of chunks that the receiver has reported
  Count running;              // counts in Environment::running_copies, while the copy runs
  Count ending, ending_here;  // count in ending_copies and ending_, after everything is sent
  transport::Company company = transport::Company::kMany;
};

class Sender : public Half<Outgoing, CopyEvent> {
 public:
  Sender(Environment& environment, PeerId peer) : Half(environment, peer) {}
  ~Sender() { copies_.clear(); }  // before ending_ ends: each Outgoing decrements it

  // `predecessor`: the id of the copy to this peer directly before this one in its stream, or 0.
  // `failure`: ok, or an error. After an error the copy has no place in the stream, and ends with
  // this error.
  void add(PeerCopy copy, StreamPlace place, uint64_t predecessor, const Status& failure);

  // Messages of the peer. kProtocol if a message is impossible in the current state.
  Status on_ready(const ReadyMessage& message);
  Status on_consumed(const ConsumedMessage& message);
  Status on_target(const TargetMessage& message, PeerLink& link);
  Status on_done(const EndMessage& message);

  // Advances every copy as far as possible. Returns true if something happened. Errors are those of
  // the mailbox.
  Result<bool> advance(PeerLink* link);
  // Starts at most one chunk; the copies take turns. Returns true if something happened.
  bool start_chunk(PeerLink& link);
  void transferred(const Transfer& transfer);

  // The peer is lost: every copy ends with `why` when its own transfers have ended.
  void lose(const Status& why);

 private:
  using Chunk = Outgoing::Chunk;
  using Stage = Outgoing::Stage;

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
  // Plans host staging, for memory that this side or the peer cannot export, register or map.
  void plan_in_host(Outgoing& copy, PeerLink& link, const std::string& why);
  void log_plan(const Outgoing& copy) const;
  void stage_instead(Outgoing& copy, PeerLink& link, const std::string& why);
  Status begin_pull(Outgoing& copy, PeerLink& link);
  Status advance_chunks(Outgoing& copy, PeerLink* link, bool& moved);
  Status announce(Outgoing& copy, PeerLink& link, bool& moved);
  Status abort(Outgoing& copy, PeerLink& link, bool& moved);
  void transfer(Outgoing& copy, Chunk& chunk, uint64_t number, PeerLink& link);
  bool must_not_overtake(const Outgoing& copy) const;
  bool waits_for_predecessor(const Outgoing& copy);
  static bool dormant(const Outgoing& copy);
  static uint64_t with_peer(const Outgoing& copy);
  static bool all_with_peer(const Outgoing& copy);
  static bool quiet(const Outgoing& copy);
  static void release_front(Outgoing& copy);
  static void drop_back(Outgoing& copy);
  static void release_consumed(Outgoing& copy);
  void finish(Outgoing& copy, PeerLink* link, const Status& status);

  uint32_t ending_ = 0;  // the number of copies that have sent everything
  uint64_t turn_ = 0;    // id of the copy that started the last chunk; the copy after it is next
};

}  // namespace rcuda::p2p
