#include "p2p/engine/peer.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "common/base/log.h"

namespace rcuda::p2p {
namespace {

constexpr size_t kMostEarlySignals = 1u << 16;

// Parses the frame as a `Message` and passes the message to the member function `handler`.
template <typename Receiver, typename Message, typename... More>
Status pass(std::span<const std::byte> frame, Receiver& receiver,
            Status (Receiver::*handler)(const Message&, More...),
            std::type_identity_t<More>... more) {
  RCUDA_ASSIGN_OR_RETURN(const Message message, parse<Message>(frame));
  return (receiver.*handler)(message, more...);
}

}  // namespace

Peer::Peer(Environment& environment, PeerId id)
    : environment_(environment), id_(id), sender_(environment, id), receiver_(environment, id) {}

void Peer::attach(std::unique_ptr<transport::Link> link, const SessionToken& token,
                  bool connected) {
  if (!lost_.ok() || link_) {
    RCUDA_WARN("a new connection with peer %u was refused: %s", id_,
               lost_.ok() ? "an earlier one is in use" : "the peer is already lost");
    link->close();
    return;
  }
  token_ = token;
  connected_ = connected;
  Status windows = Mailbox::check_windows(*link);
  if (windows.ok()) {
    const Result<Nonce> nonce = make_nonce();
    windows = nonce.status();
    if (nonce) own_nonce_ = *nonce;
  }
  link_ = std::make_unique<PeerLink>(environment_, id_, std::move(link));
  link_->link->on_immediate(
      [queue = environment_.arrivals, id = id_](uint32_t immediate, uint64_t bytes) {
        queue->push({id, immediate, bytes});
      });
  ChallengeMessage challenge;
  challenge.nonce = own_nonce_;
  if (windows.ok()) windows = link_->mailbox.send(challenge);
  if (!windows.ok()) lose(windows);
}

void Peer::lose(const Status& why) {
  if (!lost_.ok()) return;
  lost_ = why.ok() ? Status(Code::kUnavailable,
                            "the connection with peer " + std::to_string(id_) + " was ended")
                   : why;
  if (environment_.options.on_decided) environment_.options.on_decided(id_);
  if (link_) {
    link_->open = false;
    link_->link->close();
    last_copies_ = environment_.lanes.now();
  }
  if (prober_) prober_->abandon();
  if (!sender_.empty() || !receiver_.empty() || !signals_.empty() || !awaited_.empty()) say_lost();
  sender_.lose(lost_);
  receiver_.lose(lost_);
  end_signals();
  for (auto& [request, done] : std::exchange(forgetting_, {})) done();
}

void Peer::say_lost() {
  if (!connected_ || std::exchange(said_lost_, true)) return;
  if (environment_.options.on_lost) environment_.options.on_lost(id_, lost_);
}

void Peer::end_signals() {
  for (const Signal& signal : signals_) environment_.places.release(signal.place, {});
  for (const auto& [id, place] : awaited_) environment_.places.release(place, lost_);
  signals_.clear();
  awaited_.clear();
  early_.clear();
}

void Peer::add(PeerCopy copy, StreamPlace place, uint64_t predecessor, const Status& failure) {
  if (!lost_.ok()) say_lost();
  measure_ = true;
  if (copy.outgoing) {
    sender_.add(std::move(copy), place, predecessor, failure);
  } else {
    receiver_.add(std::move(copy), place, failure);
  }
}

void Peer::signal(uint64_t id, StreamRef stream, StreamPlace place, const Status& failure,
                  std::shared_ptr<const Status> outcome) {
  environment_.places.add(place, stream);
  if (!lost_.ok()) say_lost();
  if (!lost_.ok()) return environment_.places.release(place, {});
  // After a failure there is no place in the stream. The next advance_signals() sends the failure
  // to the peer.
  if (!failure.ok())
    RCUDA_DEBUG("signal %llu to peer %u reports an error, because the signal's stream failed: %s",
                static_cast<unsigned long long>(id), id_, failure.message().c_str());
  signals_.push_back({id, place, failure, std::move(outcome)});
}

void Peer::await(uint64_t id, StreamRef stream, StreamPlace place) {
  environment_.places.add(place, stream);
  if (!lost_.ok()) say_lost();
  if (!lost_.ok()) return environment_.places.release(place, lost_);
  const auto early = early_.find(id);
  if (early != early_.end()) {
    environment_.places.release(place, early->second);
    early_.erase(early);
    return;
  }
  if (!awaited_.emplace(id, place).second) {
    environment_.places.release(
        place,
        {Code::kInvalidArgument, "the client sent two waits for signal " + std::to_string(id) +
                                     " of peer " + std::to_string(id_)});
  }
}

void Peer::forget(const Exported& exported, std::function<void()> done) {
  if (!open()) {
    done();
    return;
  }
  ForgetMessage message;
  message.request = next_forget_++;
  message.handle = exported.handle;
  forgetting_[message.request] = std::move(done);
  const Status sent = link_->mailbox.send(message);
  if (!sent.ok()) lose(sent);
}

bool Peer::receive() {
  if (!link_ || !lost_.ok()) return false;
  bool moved = false;
  while (lost_.ok() && due_ == Due::kNothing) {
    Result<std::span<const std::byte>> frame = link_->mailbox.next();
    if (!frame) {
      RCUDA_ERROR("peer %u: %s. Copies with this peer fail from now on", id_,
                  frame.status().message().c_str());
      lose(frame.status());
      return true;
    }
    if (frame->empty()) break;
    moved = true;
    const Status handled = handle(*frame);
    if (!handled.ok()) {
      RCUDA_ERROR("peer %u: %s. Copies with this peer fail from now on", id_,
                  handled.message().c_str());
      lose(handled);
    }
  }
  if (!moved && lost_.ok()) {
    // Check the Link after the last message, because messages sent before the Link broke still
    // count.
    const Status status = link_->link->status();
    if (!status.ok()) {
      lose(status);
      return true;
    }
  }
  return moved;
}

Status Peer::handle(std::span<const std::byte> frame) {
  RCUDA_ASSIGN_OR_RETURN(const MessageKind kind, kind_of(frame));
  const bool greeting = kind == MessageKind::kChallenge || kind == MessageKind::kProof;
  if (!greeting && !authenticated_) {
    return peer_violation(std::string("the peer worker sent ") + to_string(kind) +
                          " before its Proof that it belongs to this session");
  }
  if (!greeting && kind != MessageKind::kOffer && !link_->open) {
    return peer_violation(std::string("the peer worker sent ") + to_string(kind) +
                          " before its Offer");
  }
  switch (kind) {
    case MessageKind::kChallenge:
      return pass(frame, *this, &Peer::on_challenge);
    case MessageKind::kProof:
      return pass(frame, *this, &Peer::on_proof);
    case MessageKind::kOffer:
      return pass(frame, *this, &Peer::on_offer);
    case MessageKind::kReady:
      return pass(frame, sender_, &Sender::on_ready);
    case MessageKind::kChunk:
      return pass(frame, receiver_, &Receiver::on_chunk, *link_);
    case MessageKind::kConsumed:
      return pass(frame, sender_, &Sender::on_consumed);
    case MessageKind::kWant:
      return pass(frame, receiver_, &Receiver::on_want);
    case MessageKind::kTarget:
      return pass(frame, sender_, &Sender::on_target, *link_);
    case MessageKind::kPull:
      return pass(frame, receiver_, &Receiver::on_pull);
    case MessageKind::kDone:
      return pass(frame, sender_, &Sender::on_done);
    case MessageKind::kAbort:
      return pass(frame, receiver_, &Receiver::on_abort);
    case MessageKind::kSignal:
      return pass(frame, *this, &Peer::on_signal);
    case MessageKind::kForget:
      return pass(frame, receiver_, &Receiver::on_forget);
    case MessageKind::kForgotten:
      return pass(frame, *this, &Peer::on_forgotten);
    case MessageKind::kEcho:
    case MessageKind::kEchoed:
      return pass(frame, *this, &Peer::on_echo);
    case MessageKind::kLeg:
      return pass(frame, *this, &Peer::on_leg);
    case MessageKind::kMappable:
      return pass(frame, *this, &Peer::on_mappable);
  }
  return peer_violation("the peer worker sent a message of unknown kind " +
                        std::to_string(static_cast<uint32_t>(kind)));
}

Status Peer::on_echo(const EchoMessage& message) {
  if (message.kind == MessageKind::kEchoed) {
    if (prober_) prober_->echoed(message.tag);
    return {};
  }
  EchoMessage answer = message;
  answer.kind = MessageKind::kEchoed;
  return link_->mailbox.send(answer);
}

void Peer::arrived(const Arrival& arrival) {
  if (!link_ || !lost_.ok()) return;
  const Status status = link_->arrivals.add(arrival.immediate, arrival.bytes);
  if (!status.ok()) lose(status);
}

void Peer::transferred(const Transfer& transfer) {
  if (!link_) return;
  --link_->transferring;
  if (transfer.copy != Prober::kTransfer) return sender_.transferred(transfer);
  if (prober_) prober_->transferred(transfer.status);
}

Status Peer::on_signal(const SignalMessage& message) {
  const auto waiting = awaited_.find(message.signal);
  if (waiting != awaited_.end()) {
    environment_.places.release(waiting->second, status_of(message));
    awaited_.erase(waiting);
    return {};
  }
  if (early_.size() >= kMostEarlySignals) {
    return peer_violation("the peer worker sent more than " + std::to_string(kMostEarlySignals) +
                          " signals for which no stream waits");
  }
  if (!early_.emplace(message.signal, status_of(message)).second) {
    return peer_violation("the peer worker sent signal " + std::to_string(message.signal) +
                          " twice");
  }
  return {};
}

Status Peer::on_forgotten(const ForgottenMessage& message) {
  const auto found = forgetting_.find(message.request);
  if (found == forgetting_.end()) {
    return peer_violation("the peer worker sent Forgotten for request " +
                          std::to_string(message.request) + ", which this side has not sent");
  }
  const std::function<void()> done = std::move(found->second);
  forgetting_.erase(found);
  done();
  return {};
}

Status Peer::advance_signals(bool& moved) {
  for (auto at = signals_.begin(); at != signals_.end();) {
    Status met = at->failure;
    if (at->place != StreamPlace::kNone) {
      const Result<bool> reached = environment_.places.reached(at->place);
      if (reached && !*reached) {
        ++at;
        continue;
      }
      if (!reached) met = reached.status();
      environment_.places.release(at->place, {});
    }
    if (met.ok() && at->outcome) met = *at->outcome;
    const SignalMessage message = make_signal(at->id, met);
    at = signals_.erase(at);
    moved = true;
    RCUDA_RETURN_IF_ERROR(link_->mailbox.send(message));
  }
  return {};
}

Status Peer::advance_link(bool& moved) {
  RCUDA_ASSIGN_OR_RETURN(const bool flushed, link_->mailbox.flush());
  moved |= flushed;
  if (due_ != Due::kNothing && environment_.ops.pause(Pause::kHolds)) {
    moved = true;
    const Due due = std::exchange(due_, Due::kNothing);
    RCUDA_RETURN_IF_ERROR(due == Due::kOffer ? send_offer() : open_link());
  }
  if (link_->open) {
    RCUDA_RETURN_IF_ERROR(advance_signals(moved));
    if (measuring()) {
      // Copies go first: a copy spoils the prober's sample. Also, the prober allocates memory,
      // which is not allowed while a stream is held.
      const bool busy = !sender_.empty() || !receiver_.empty() || environment_.ops.holding();
      RCUDA_ASSIGN_OR_RETURN(const bool measured, prober_->advance(busy));
      moved |= measured;
      if (prober_->over()) {
        prober_.reset();
        moved = true;
        link_->refresh_models();
        RCUDA_RETURN_IF_ERROR(send_legs());
      }
    }
  }
  return {};
}

bool Peer::advance() {
  bool moved = false;
  if (link_ && lost_.ok()) {
    const Status status = advance_link(moved);
    if (!status.ok()) {
      lose(status);
      moved = true;
    }
  }
  const Result<bool> sent = sender_.advance(link_.get());
  if (!sent) lose(sent.status());
  const Result<bool> received = receiver_.advance(link_.get());
  if (!received) lose(received.status());
  moved |= !sent || !received || *sent || *received;
  // The Link and its buffers are destroyed when no copy or measurement uses them any more.
  if (!lost_.ok() && link_ && sender_.empty() && receiver_.empty() && link_->transferring == 0 &&
      environment_.lanes.passed(last_copies_) && environment_.ops.pause(Pause::kWork)) {
    prober_.reset();
    for (const Prober::Mapped& mapping : mapped_) {
      environment_.ops.close(mapping.device, mapping.base);
    }
    mapped_.clear();
    receiver_.close_mappings();
    if (environment_.before_drop) environment_.before_drop(link_->link.get());
    link_.reset();
    moved = true;
  }
  return moved;
}

bool Peer::start_chunk() { return open() && lost_.ok() && sender_.start_chunk(*link_); }

Result<Forecast> Peer::forecast(int device, int peer_device, uint64_t bytes) {
  if (!environment_.valid_device(device) || peer_device < 0 ||
      static_cast<uint32_t>(peer_device) >= link_->offer.device_count) {
    return Status(Code::kInvalidArgument,
                  "no route from device " + std::to_string(device) + " of this worker to device " +
                      std::to_string(peer_device) + " of peer " + std::to_string(id_) +
                      ": one of the devices does not exist");
  }
  measure_ = true;
  Planner& planner = link_->planner(device, peer_device);
  RCUDA_ASSIGN_OR_RETURN(Plan plan, planner.plan(bytes, true));
  return Forecast{std::move(plan), planner.table(bytes), !prober_ && link_->unanswered == 0};
}

bool Peer::idle() const {
  return sender_.empty() && receiver_.empty() && signals_.empty() && !measuring();
}

bool Peer::polling() const {
  return sender_.polling() || receiver_.polling() || !signals_.empty() ||
         (link_ && lost_.ok() && (due_ != Due::kNothing || link_->mailbox.waiting()));
}

}  // namespace rcuda::p2p
