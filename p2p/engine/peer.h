// Peer: another worker of the session. A Peer is made before its connection and exists until the
// session ends.
//
// It queues copies until the Link is open, greets and authenticates the peer, and dispatches
// messages. The Link and the buffers of a lost peer stay until every transfer that uses them has
// ended. Then the copies have ended with the error, and the next Pause::kWork frees the memory. A
// lost peer stays lost. Used only by the engine thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "p2p/copy/receiver.h"
#include "p2p/copy/sender.h"
#include "p2p/engine/prober.h"
#include "p2p/link/authentication.h"
#include "p2p/link/environment.h"
#include "p2p/link/peer_link.h"

namespace rcuda::p2p {

class Peer {
 public:
  Peer(Environment& environment, PeerId id);

  // Uses the connected Link. `connected`: this side opened it. A second Link is refused.
  void attach(std::unique_ptr<transport::Link> link, const SessionToken& token, bool connected);
  // Call it if the Link cannot be made, or must not be used any more.
  void lose(const Status& why);

  // `predecessor`: the id of the copy to this peer directly before this one in its stream, or 0.
  void add(PeerCopy copy, StreamPlace place, uint64_t predecessor, const Status& failure);
  // signal(): the peer's streams wait for an event of this side. await(): a stream of this side
  // waits for an event of the peer. `place` lies in `stream`. The peer's streams get `failure`, or
  // if that is ok, the error in `outcome` (Engine::signal()).
  void signal(uint64_t id, StreamRef stream, StreamPlace place, const Status& failure,
              std::shared_ptr<const Status> outcome = nullptr);
  void await(uint64_t id, StreamRef stream, StreamPlace place);
  // Requests that the peer unmaps the memory. `done` runs when the peer has unmapped it, or is
  // lost.
  void forget(const Exported& exported, std::function<void()> done);

  bool receive();  // handles the messages that have arrived
  bool advance();  // advances copies, signals and measurements
  bool start_chunk();
  void transferred(const Transfer& transfer);  // a transfer of this side has ended
  void arrived(const Arrival& arrival);        // bytes of the peer have arrived

  // Returns how a contiguous copy would be made now, and whether all legs have been measured. The
  // peer must be open.
  Result<Forecast> forecast(int device, int peer_device, uint64_t bytes);

  bool open() const { return link_ && link_->open; }
  // Whether a copy that is not over uses memory of this range.
  bool uses(DeviceAddress base, uint64_t bytes) const {
    return sender_.uses(base, bytes) || receiver_.uses(base, bytes);
  }
  bool measuring() const { return prober_ && measure_; }
  bool idle() const;     // no copy, no signal to send and no measurement
  bool polling() const;  // something in progress must be polled
  bool pending() const {
    return link_ && lost_.ok() && due_ == Due::kNothing && link_->mailbox.pending();
  }
  // The offset in this side's window at which the next message begins (its first word becomes
  // nonzero).
  uint64_t next_message_offset() const { return link_ ? link_->mailbox.next_offset() : 0; }
  // The peer's Link; nullptr without one. While the engine is idle, one of its threads (Listener in
  // engine.cpp) sleeps on the Link.
  transport::Link* link() const { return link_ ? link_->link.get() : nullptr; }
  PeerLink* peer_link() { return link_.get(); }
  PeerId id() const { return id_; }
  const Status& lost() const { return lost_; }

 private:
  // The next step of the greeting that needs a pause (pause.h). No message is handled before this
  // step.
  enum class Due : uint8_t { kNothing, kOffer, kOpen };

  Status handle(std::span<const std::byte> frame);
  Status on_challenge(const ChallengeMessage& message);
  Status on_proof(const ProofMessage& message);
  Status on_offer(const OfferMessage& message);
  Status on_signal(const SignalMessage& message);
  Status on_forgotten(const ForgottenMessage& message);
  Status on_echo(const EchoMessage& message);
  Status on_leg(const LegMessage& message);
  Status on_mappable(const MappableMessage& message);
  Status send_offer();
  Status open_link();
  Status map_probe_memory();
  Status advance_signals(bool& moved);
  Status send_leg(ReportedLeg which, int device, int peer_device, const LegModel& leg);
  Status send_legs();
  Status advance_link(bool& moved);
  void end_signals();
  void say_lost();

  Environment& environment_;
  const PeerId id_;
  std::unique_ptr<PeerLink> link_;
  Sender sender_;
  Receiver receiver_;
  std::unique_ptr<Prober> prober_;
  // Whether this peer's legs must be measured. The legs of the first peer are measured at once,
  // because most of them belong to this worker. The legs of another peer are measured when a copy
  // with it is first requested, so a session with many servers measures only the legs that it uses.
  bool measure_ = false;
  Status lost_;
  bool said_lost_ = false;
  Lanes::Moment last_copies_;  // the copies queued when the peer was lost

  SessionToken token_{};
  bool connected_ = false;
  Nonce own_nonce_{};
  std::optional<Nonce> peer_nonce_;
  bool authenticated_ = false;
  bool offered_ = false;
  Due due_ = Due::kNothing;

  std::deque<Signal> signals_;               // to be sent when their stream reaches them
  std::map<uint64_t, StreamPlace> awaited_;  // streams held until the peer's signal
  std::map<uint64_t, Status> early_;         // signals that came before await(), with their status
  std::map<uint64_t, std::function<void()>> forgetting_;
  uint64_t next_forget_ = 1;
  // The mappings of the peer's probe memory (Environment::probe_memory). Unmapped when the peer is
  // lost.
  std::vector<Prober::Mapped> mapped_;
};

}  // namespace rcuda::p2p
