// A peer of the engine whose messages the test makes, byte by byte if necessary.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/wire/ring.h"
#include "p2p/link/messages.h"
#include "tests/unit/p2p/copy/session.h"

namespace rcuda::p2p {

class RawPeer {
 public:
  explicit RawPeer(SimSession& session, const char* medium = "tcp") : session_(session) {
    SimLinkPair pair = testing::make_sim_links(session.world, medium, {});
    link_ = std::move(pair.second);
    writer_ = std::make_unique<wire::RingWriter>(*link_, PeerWindow::layout());
    reader_ = std::make_unique<wire::RingReader>(*link_, PeerWindow::layout());
    session.core(0).peer(1).attach(std::move(pair.first), token_of(7), true);
    session.settle();
  }
  // Sends a message, well-formed or not.
  void send_bytes(std::span<const std::byte> frame) {
    if (!frame.empty() && frame.size() <= PeerWindow::kMaxMessageBytes) {
      (void)writer_->append(frame, {}, transport::Wake::kYes, std::chrono::steady_clock::now());
    }
    session_.settle();
  }
  template <typename Message>
  void send(const Message& message) {
    send_bytes(std::as_bytes(std::span(&message, 1)));
  }
  // Returns the next message of this kind that has arrived. Skips messages of other kinds.
  template <typename Message>
  std::optional<Message> receive_as(MessageKind kind) {
    while (true) {
      const auto frame = reader_->try_next();
      if (!frame || frame->empty()) return std::nullopt;
      if (*kind_of(*frame) == kind) return *parse<Message>(*frame);
    }
  }
  template <typename Message>
  std::optional<Message> receive() {
    return receive_as<Message>(Message().kind);
  }
  // challenge() and prove() are the steps of a greeting, greet() is a whole greeting.
  void challenge() {
    ChallengeMessage challenge;
    challenge.nonce = own_nonce_ = *make_nonce();
    const auto theirs = receive<ChallengeMessage>();
    ASSERT_TRUE(theirs);
    their_nonce_ = theirs->nonce;
    send(challenge);
  }
  void prove() {
    ProofMessage proof;
    proof.proof = make_proof(token_of(7), false, own_nonce_, their_nonce_);
    send(proof);
  }
  OfferMessage make_offer() {
    OfferMessage offer;
    offer.device_count = 1;
    offer.inbox_bytes = 1 << 20;
    inbox_.resize(offer.inbox_bytes);
    offer.inbox_region =
        static_cast<uint64_t>(link_->expose(inbox_.data(), inbox_.size(), -1, 0)->id);
    put_text(offer.name, "raw");
    put_text(offer.devices[0].uuid, "GPU-raw");
    return offer;
  }
  void greet() {
    challenge();
    prove();
    send(make_offer());
  }
  const Nonce& own_nonce() const { return own_nonce_; }
  const Nonce& their_nonce() const { return their_nonce_; }
  bool alive() { return session_.core(0).peer(1).lost().ok(); }
  bool open() { return session_.core(0).peer(1).open(); }
  Status lost() { return session_.core(0).peer(1).lost(); }

 private:
  SimSession& session_;
  std::unique_ptr<transport::Link> link_;
  std::unique_ptr<wire::RingWriter> writer_;
  std::unique_ptr<wire::RingReader> reader_;
  std::vector<std::byte> inbox_;
  Nonce own_nonce_{}, their_nonce_{};
};

inline EngineOptions quiet_options() {
  EngineOptions options;
  options.measure = false;
  return options;
}

}  // namespace rcuda::p2p
