// Peer: one other worker of the session, from before it is connected until it is lost.
//
// It holds copies until the Link is open, greets and authenticates, dispatches messages, and keeps
// apart what must outlive what: a lost peer's Link and buffers stay until every transfer that uses
// them has ended, then copies end with the error and memory is given back. Lost is for good.
// Used by the engine's thread alone.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "p2p/pipeline/authentication.h"
#include "p2p/pipeline/environment.h"
#include "p2p/pipeline/peer_link.h"
#include "p2p/pipeline/prober.h"
#include "p2p/pipeline/receiver.h"
#include "p2p/pipeline/sender.h"

namespace rcuda::p2p {

// Shipment::copy of the transfer that probes GPUDirect; the client mints no such id.
inline constexpr uint64_t kProbeShipment = UINT64_MAX - 1;

class Peer {
 public:
  Peer(Environment& environment, PeerId id);

  // The Link stands; `connected`: this side opened it. Only once.
  void attach(std::unique_ptr<transport::Link> link, const SessionToken& token, bool connected);
  // The Link cannot be had, or is no longer wanted.
  void lose(const Status& why);

  // `before`: the copy to this peer that the copy's place in its stream is right behind, or 0.
  void add(PeerCopy copy, Order order, uint64_t before, const Status& failure);
  // A stream of this side got to an event that the peer's streams wait for, and the other way.
  void signal(uint64_t id, Order order, const Status& failure);
  void await(uint64_t id, Order order);
  // Tells the peer to unmap; `done` runs when it has, or is gone.
  void forget(const Exported& exported, std::function<void()> done);

  bool receive();  // handles what arrived
  bool advance();  // moves everything on
  bool start_chunk();
  void shipped(const Shipment& shipment);
  void arrived(const Arrival& arrival);

  // Of an open peer: how a plain copy would go now, and whether all legs are measured.
  Result<Forecast> forecast(int device, int peer_device, uint64_t bytes);

  bool open() const { return link_ && link_->open; }
  bool measuring() const { return prober_ && measure_; }
  bool idle() const;     // no copy and no measurement
  bool polling() const;  // something only asking tells about
  bool pending() const {
    return link_ && lost_.ok() && due_ == Due::kNothing && link_->mailbox.pending();
  }
  // Where in this side's window the next message will show (its first word turns nonzero).
  uint64_t next_message_offset() const { return link_ ? link_->mailbox.next_offset() : 0; }
  // The Link to sleep on; nullptr when there is none.
  transport::Link* link() const { return link_ ? link_->link.get() : nullptr; }
  PeerLink* peer_link() { return link_.get(); }
  PeerId id() const { return id_; }
  const Status& lost() const { return lost_; }

 private:
  struct Signal {
    uint64_t id = 0;
    Order order = Order::kNone;  // none: the stream cannot be watched, for `failure`
    Status failure;
  };
  struct GpudirectProbe {
    enum class Stage : uint8_t { kFilling, kShipping, kAsked, kOver };
    int device = 0;
    int peer_device = 0;
    uint64_t pattern = 0;
    Stage stage = Stage::kFilling;
    Ticket ticket = 0;
  };
  // What the greeting has come to and takes a pause. Until then no message is taken.
  enum class Due : uint8_t { kNothing, kOffer, kOpen };
  struct ProbeCheck {  // of the peer's probe, here
    ProbeMessage probe;
    Ticket ticket = 0;
  };

  Status handle(std::span<const std::byte> frame);
  Status on_challenge(const ChallengeMessage& message);
  Status on_proof(const ProofMessage& message);
  Status on_offer(const OfferMessage& message);
  Status on_signal(const SignalMessage& message);
  Status on_forgotten(const ForgottenMessage& message);
  Status on_leg(const LegMessage& message);
  Status on_probe(const ProbeMessage& message);
  Status on_probed(const ProbedMessage& message);
  Status send_offer();
  Status open_link();
  Status start_probes();
  Status advance_probes(bool& moved);
  Status advance_signals(bool& moved);
  Status send_leg(const LegKey& key, const LegModel& leg);
  Status send_legs();
  Status step(bool& moved);
  bool prepare_plan();
  void end_signals();

  Environment& environment_;
  const PeerId id_;
  std::unique_ptr<PeerLink> link_;
  Sender sender_;
  Receiver receiver_;
  std::unique_ptr<Prober> prober_;
  // Whether this peer's legs are to be measured: the first peer's at once, since most legs are this
  // worker's own, those of the others when a copy with them was asked for. A session over many
  // servers measures what it uses.
  bool measure_ = false;
  Status lost_;
  double copied_us_ = 0;       // when a copy was last under way
  double plan_again_us_ = 0;   // when the next plan may be made without a pause
  Lanes::Moment last_copies_;  // when the peer was lost

  SessionToken token_{};
  bool connected_ = false;
  Nonce own_nonce_{};
  std::optional<Nonce> peer_nonce_;
  bool authenticated_ = false;
  bool offered_ = false;
  Due due_ = Due::kNothing;

  std::deque<Signal> signals_;         // to be sent when their stream gets there
  std::map<uint64_t, Order> awaited_;  // streams held until the peer's signal
  std::map<uint64_t, Status> early_;   // signals that came first, with what they tell
  std::map<uint64_t, std::function<void()>> forgetting_;
  uint64_t next_forget_ = 1;
  // The peer's probe memory, mapped to see whether it can be; unmapped when the peer goes.
  std::vector<Prober::Mapped> mapped_;
  size_t unmapped_ = 0;  // answers that the peer owes about mapping this side's memory
  std::deque<GpudirectProbe> probes_;
  std::deque<ProbeCheck> checks_;
};

}  // namespace rcuda::p2p
