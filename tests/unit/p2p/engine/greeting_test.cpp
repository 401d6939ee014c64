// Which peers are accepted, and what happens after malformed or impossible messages.
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/log.h"
#include "p2p/staging/arena.h"
#include "tests/unit/p2p/copy/raw_peer.h"
#include "tests/unit/p2p/copy/session.h"

namespace rcuda::p2p {
namespace {

// A Leg that is valid if the devices exist.
LegMessage leg_of(ReportedLeg which, uint32_t device, uint32_t peer_device) {
  LegMessage message;
  message.leg = which;
  message.device = device;
  message.peer_device = peer_device;
  message.knot_count = 2;
  message.bytes = {0, 1};
  message.us = {1, 1};
  return message;
}

TEST(GreetingTest, AnotherTokenIsRefusedAndNothingIsOffered) {
  SimSession session;
  session.add();
  session.add();
  SimLinkPair pair = testing::make_sim_links(session.world, "shm", {});
  session.core(0).peer(1).attach(std::move(pair.first), token_of(1), true);
  session.core(1).peer(0).attach(std::move(pair.second), token_of(2), false);
  session.settle();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_FALSE(session.core(i).peer(static_cast<PeerId>(1 - i)).open());
    EXPECT_FALSE(session.core(i).peer(static_cast<PeerId>(1 - i)).lost().ok());
    EXPECT_EQ(session.workers[i].devices->registered(), 0u);
    EXPECT_EQ(session.workers[i].devices->allocated(), 0u);
  }
}

TEST(GreetingTest, ProofsDependOnTokenRoleAndNonces) {
  const Nonce one = *make_nonce();
  const Nonce two = *make_nonce();
  const Proof proof = make_proof(token_of(1), true, one, two);
  EXPECT_TRUE(proof_holds(proof, make_proof(token_of(1), true, one, two)));
  EXPECT_FALSE(proof_holds(proof, make_proof(token_of(2), true, one, two)));
  EXPECT_FALSE(proof_holds(proof, make_proof(token_of(1), false, one, two)));  // reflected
  EXPECT_FALSE(proof_holds(proof, make_proof(token_of(1), true, two, one)));
  EXPECT_NE(one, two);
}

TEST(GreetingTest, NothingIsHeardBeforeTheProof) {
  for (int kind = 0; kind < 5; ++kind) {
    SimSession session("auto", quiet_options());
    session.add();
    RawPeer peer(session);
    switch (kind) {
      case 0:
        peer.send(OfferMessage{});
        break;
      case 1:
        peer.send(ChunkMessage{});
        break;
      case 2:
        peer.send(PullMessage{});
        break;
      case 3:
        peer.send(SignalMessage{});
        break;
      case 4:
        peer.send(ProofMessage{});
        break;  // without a challenge
    }
    EXPECT_EQ(peer.lost().code(), Code::kProtocol) << kind;
    EXPECT_EQ(session.workers[0].devices->registered(), 0u);
  }
}

// ---- every state ----

// The steps that a peer has finished of a correct greeting.
enum class State { kNew, kChallenged, kProven };
constexpr State kStates[] = {State::kNew, State::kChallenged, State::kProven};

void advance_to(State state, RawPeer& peer) {
  if (state >= State::kChallenged) peer.challenge();
  if (state >= State::kProven) peer.prove();
  ASSERT_TRUE(peer.alive());
}

struct Named {
  std::string name;
  std::vector<std::byte> frame;
};

// Every message, with its right size and zeros as contents; a message of an unknown kind; and a
// truncated message.
std::vector<Named> all_messages() {
  std::vector<Named> all;
  const auto add = [&](const auto& message) {
    const auto bytes = std::as_bytes(std::span(&message, 1));
    all.push_back({to_string(message.kind), {bytes.begin(), bytes.end()}});
  };
  add(ChallengeMessage{}), add(ProofMessage{}), add(OfferMessage{}), add(ReadyMessage{});
  add(ChunkMessage{}), add(ConsumedMessage{}), add(WantMessage{}), add(TargetMessage{});
  add(PullMessage{}), add(SignalMessage{}), add(ForgetMessage{}), add(ForgottenMessage{});
  add(LegMessage{}), add(MappableMessage{});
  add(make_end(MessageKind::kDone, 1, {}));
  add(make_end(MessageKind::kAbort, 1, {Code::kInternal, "no"}));
  EchoMessage echo;
  add(echo);
  echo.kind = MessageKind::kEchoed;
  add(echo);
  EXPECT_EQ(all.size(), 18u);
  Named cut = all.front();
  cut.name += " cut off";
  cut.frame.resize(8);
  all.push_back(std::move(cut));
  all.push_back({"of no kind", std::vector<std::byte>(16)});
  return all;
}

TEST(GreetingTest, InEachStateOnlyWhatIsDueIsTaken) {
  set_log_level(LogLevel::kOff);
  for (const State state : kStates) {
    for (const Named& message : all_messages()) {
      // A Challenge is due in this state. The tests of its contents are elsewhere.
      if (state == State::kNew && message.name == to_string(MessageKind::kChallenge)) continue;
      SimSession session("auto", quiet_options());
      session.add();
      RawPeer peer(session);
      advance_to(state, peer);
      EXPECT_EQ(peer.receive<OfferMessage>().has_value(), state == State::kProven);
      peer.send_bytes(message.frame);
      EXPECT_FALSE(peer.alive()) << message.name << " in state " << static_cast<int>(state);
      EXPECT_FALSE(peer.receive<OfferMessage>());
      EXPECT_EQ(session.core(0).peer(1).link(), nullptr);
      EXPECT_EQ(session.workers[0].devices->registered(), 0u);
      EXPECT_EQ(session.workers[0].devices->allocated(), 0u);
    }
  }
  set_log_level(LogLevel::kWarn);
}

TEST(GreetingTest, AProofOfAnythingElseIsRefused) {
  for (int kind = 0; kind < 5; ++kind) {
    SimSession session("auto", quiet_options());
    session.add();
    RawPeer peer(session);
    peer.challenge();
    const Nonce &own = peer.own_nonce(), &theirs = peer.their_nonce();
    ProofMessage proof;
    switch (kind) {
      case 0:  // another session's token
        proof.proof = make_proof(token_of(8), false, own, theirs);
        break;
      case 1:  // the proof that the engine itself has sent
        proof.proof = peer.receive<ProofMessage>()->proof;
        break;
      case 2:  // for the other role
        proof.proof = make_proof(token_of(7), true, own, theirs);
        break;
      case 3:  // of an earlier connection
        proof.proof = make_proof(token_of(7), false, own, *make_nonce());
        break;
      case 4:
        proof.proof = make_proof(token_of(7), false, theirs, own);
        break;
    }
    peer.send(proof);
    EXPECT_EQ(peer.lost().code(), Code::kUnavailable) << kind;
    EXPECT_FALSE(peer.receive<OfferMessage>());
    EXPECT_EQ(session.workers[0].devices->registered(), 0u);
  }
}

TEST(GreetingTest, AnOfferThatCannotBeIsRefused) {
  using Change = void (*)(OfferMessage&);
  const Change changes[] = {
      [](OfferMessage& m) { m.device_count = kMaxDevices + 1; },
      [](OfferMessage& m) { m.device_count = UINT32_MAX; },
      [](OfferMessage& m) { m.host.fill('h'); },
      [](OfferMessage& m) { m.name.fill('n'); },
      [](OfferMessage& m) { m.devices[0].uuid.fill('u'); },
      [](OfferMessage& m) { m.inbox_region = 0; },
      [](OfferMessage& m) { m.inbox_bytes = 0; },
      [](OfferMessage& m) { m.inbox_bytes = EngineOptions::kLeastInboxBytes - 1; },
      [](OfferMessage& m) { m.inbox_bytes += 8; },
      [](OfferMessage& m) { m.devices[0].inbox_region = 1, m.devices[0].inbox_bytes = 0; },
      [](OfferMessage& m) { m.devices[0].inbox_region = 1, m.devices[0].inbox_bytes = 1000; },
      [](OfferMessage& m) { m.devices[0].inbox_region = 1, m.devices[0].inbox_bytes = ~511ull; },
      [](OfferMessage& m) { m.devices[0].inbox_region = 0, m.devices[0].inbox_bytes = 512; },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    SimSession session("auto", quiet_options());
    session.add();
    RawPeer peer(session);
    peer.challenge();
    peer.prove();
    OfferMessage offer = peer.make_offer();
    changes[i](offer);
    peer.send(offer);
    EXPECT_EQ(peer.lost().code(), Code::kProtocol) << "change " << i;
    EXPECT_FALSE(peer.open());
    EXPECT_EQ(session.workers[0].devices->registered(), 0u);
  }
}

TEST(GreetingTest, APeerThatLeavesInAnyStateIsLost) {
  for (const State state : kStates) {
    SimSession session("auto", quiet_options());
    session.add();
    {
      RawPeer peer(session);
      advance_to(state, peer);
    }
    session.settle();
    EXPECT_FALSE(session.core(0).peer(1).lost().ok());
    EXPECT_EQ(session.core(0).peer(1).link(), nullptr);
    EXPECT_EQ(session.workers[0].devices->registered(), 0u);
  }
}

TEST(GreetingTest, ASecondConnectionIsRefusedAlsoAfterTheFirst) {
  SimSession session("auto", quiet_options());
  session.add();
  session.add();
  session.connect(0, 1, "tcp");
  session.settle();
  ASSERT_TRUE(session.core(0).peer(1).open());
  for (const bool lost : {false, true}) {
    if (lost) session.core(0).peer(1).lose({Code::kUnavailable, "enough"});
    SimLinkPair late = testing::make_sim_links(session.world, "tcp", {});
    session.core(0).peer(1).attach(std::move(late.first), token_of(7), true);
    session.settle();
    EXPECT_FALSE(late.second->status().ok());
    EXPECT_EQ(session.core(0).peer(1).open(), !lost);
    EXPECT_EQ(session.core(0).peer(1).lost().ok(), !lost);
  }
}

TEST(GreetingTest, ARightGreetingOpens) {
  SimSession session("auto", quiet_options());
  session.add();
  RawPeer peer(session);
  peer.greet();
  EXPECT_TRUE(peer.open());
}

// Each of these messages ends the connection and nothing else.
TEST(HostileTest, MessagesThatCannotBeEndTheLink) {
  using Act = std::function<void(RawPeer&)>;
  const auto chunk = [](auto change) {
    return [change](RawPeer& peer) {
      ChunkMessage message;
      message.copy = 1;
      message.bytes = 4096;
      message.total = 1 << 20;
      change(message);
      peer.send(message);
    };
  };
  const std::vector<Act> acts{
      chunk([](ChunkMessage& m) { m.offset = 1; }),
      chunk([](ChunkMessage& m) { m.bytes = m.total + 1; }),
      chunk([](ChunkMessage& m) { m.bytes = UINT64_MAX; }),
      chunk([](ChunkMessage& m) { m.bytes = 0; }),
      chunk([](ChunkMessage& m) { m.slot = UINT64_MAX - 100; }),
      chunk([](ChunkMessage& m) { m.slot = 32ull << 20; }),
      chunk([](ChunkMessage& m) { m.where = Where::kTarget; }),
      chunk([](ChunkMessage& m) { m.where = static_cast<Where>(9); }),
      chunk([](ChunkMessage& m) { m.predecessor = m.copy; }),
      [](RawPeer& peer) {
        PullMessage pull;
        pull.copy = pull.predecessor = 1;
        peer.send(pull);
      },
      [](RawPeer& peer) { peer.send(ConsumedMessage{}); },
      [](RawPeer& peer) { peer.send(TargetMessage{}); },
      [](RawPeer& peer) { peer.send(make_end(MessageKind::kDone, 5, {})); },
      [](RawPeer& peer) { peer.send(make_end(MessageKind::kAbort, 5, {})); },
      [](RawPeer& peer) {
        EndMessage abort = make_end(MessageKind::kAbort, 5, {Code::kInternal, "no"});
        abort.chunks = 1;  // but none was announced
        peer.send(abort);
      },
      [](RawPeer& peer) { peer.send(ForgottenMessage{}); },
      [](RawPeer& peer) {
        peer.send(SignalMessage{});
        peer.send(SignalMessage{});
      },
      [](RawPeer& peer) { peer.send(OfferMessage{}); },
      [](RawPeer& peer) { peer.send(MappableMessage{}); },
      [](RawPeer& peer) { peer.send(LegMessage{}); },
      [](RawPeer& peer) { peer.send(leg_of(ReportedLeg{3}, 0, 0)); },
      [](RawPeer& peer) { peer.send(leg_of(ReportedLeg::kCopyIn, 1, 0)); },
      [](RawPeer& peer) { peer.send(leg_of(ReportedLeg::kIpc, 0, 1)); },
      [](RawPeer& peer) {
        WantMessage want;
        want.copy = 5;
        peer.send(want);
        ChunkMessage chunk;  // before the answer
        chunk.copy = 5;
        chunk.bytes = chunk.total = 8;
        peer.send(chunk);
      },
      [](RawPeer& peer) { peer.send(ChallengeMessage{}); },
      [](RawPeer& peer) { peer.send(std::array<uint64_t, 1>{99}); },
      [](RawPeer& peer) {
        std::array<uint64_t, 3> wrong_size{static_cast<uint64_t>(MessageKind::kChunk)};
        peer.send(wrong_size);
      },
  };
  for (size_t i = 0; i < acts.size(); ++i) {
    SimSession session("auto", quiet_options());
    session.add();
    RawPeer peer(session);
    peer.greet();
    ASSERT_TRUE(peer.open());
    acts[i](peer);
    EXPECT_FALSE(peer.alive()) << "act " << i;
  }
}

// Chunks are not consumed while the client's command for this half of the copy is missing. A peer
// must not be able to queue any number of them.
TEST(HostileTest, ChunksWithoutPlacesDoNotPileUp) {
  constexpr uint64_t kFrame = PeerWindow::kMaxMessageBytes / sizeof(ChunkMessage);
  for (const bool empty : {false, true}) {
    EngineOptions options = quiet_options();
    options.inbox_bytes = 1 << 20;
    SimSession session("auto", options);
    session.add();
    RawPeer peer(session);
    peer.greet();
    ASSERT_TRUE(peer.open());
    ChunkMessage chunk;
    chunk.copy = 1;
    chunk.bytes = empty ? 0 : 1;
    chunk.total = empty ? 0 : UINT64_MAX;
    uint64_t sent = 0;
    while (peer.alive() && sent < 1'000'000) {
      std::vector<ChunkMessage> frame(kFrame);
      for (ChunkMessage& message : frame) {
        chunk.offset = empty ? 0 : sent++;
        message = chunk;
      }
      sent += empty ? kFrame : 0;
      peer.send_bytes(std::as_bytes(std::span(frame)));
    }
    EXPECT_FALSE(peer.alive()) << sent << " chunks";
    EXPECT_EQ(peer.lost().code(), Code::kProtocol);
  }
}

// Chunks that have a slot in the inbox may wait for the client's command, however small they are.
TEST(HostileTest, AnInboxFullOfSmallChunksIsTaken) {
  EngineOptions options = quiet_options();
  options.inbox_bytes = 1 << 20;
  SimSession session("auto", options);
  session.add();
  RawPeer peer(session);
  peer.greet();
  ChunkMessage chunk;
  chunk.copy = 1;
  chunk.bytes = 8;
  chunk.total = options.inbox_bytes / Arena::kAlignment * chunk.bytes;
  for (uint64_t slot = 0; slot < options.inbox_bytes; slot += Arena::kAlignment) {
    chunk.slot = slot;
    peer.send(chunk);
    chunk.offset += chunk.bytes;
  }
  EXPECT_TRUE(peer.alive()) << peer.lost().message();
}

// This side's driver reports the size of the memory. A peer cannot influence it.
TEST(HostileTest, OnlyWhatIsMappedIsPulled) {
  constexpr uint64_t kBytes = 1 << 20;
  struct Case {
    uint64_t offset, width, height, pitch;
    bool good;
  };
  for (const Case& of :
       {Case{kBytes - 4096, 4096, 1, 0, true}, Case{0, 1024, 4, kBytes / 4, true},
        Case{kBytes - 4096 + 8, 4096, 1, 0, false}, Case{0 - uint64_t{4096}, 4096, 1, 0, false},
        Case{8, 1024, 4, kBytes / 3, false}}) {
    Status ended{Code::kInternal, "not over"};  // outlives the session, which ends the copy
    SimSession session("auto", quiet_options());
    SimDevices& devices = session.add();
    devices.allow_ipc(true);
    SimDevices& elsewhere = session.add();
    elsewhere.allow_ipc(true);
    RawPeer peer(session);
    peer.greet();
    CopyRequest request;
    request.from = 1;
    request.to = 0;
    request.destination =
        Shape{address_of(devices.make_memory(4096)), of.width, of.height, 1, of.width};
    PeerCopy half = receiving_half(request);
    half.done = [&](const Status& status) { ended = status; };
    session.core(0).copy(half, StreamPlace::kNone, {});
    PullMessage pull;
    pull.copy = request.id;
    pull.handle = elsewhere.export_memory(0, address_of(elsewhere.make_memory(kBytes)))->handle;
    pull.offset = of.offset;
    pull.width_bytes = of.width;
    pull.height = of.height;
    pull.depth = 1;
    pull.pitch_bytes = of.pitch;
    peer.send(pull);
    EXPECT_EQ(ended.code(), of.good ? Code::kOk : Code::kInternal) << of.offset;
    const auto refusal = peer.receive<TargetMessage>();
    EXPECT_EQ(refusal && refusal->refused == 1, !of.good) << of.offset;
    EXPECT_TRUE(peer.alive()) << of.offset;
  }
}

TEST(HostileTest, MemoryToMeasureWithIsAsLargeAsItShouldBe) {
  for (const uint64_t bytes : {Prober::kLargestBytes, Prober::kLargestBytes - 1}) {
    SimSession session("auto", quiet_options());
    session.add().allow_ipc(true);
    SimDevices& elsewhere = session.add();
    elsewhere.allow_ipc(true);
    RawPeer peer(session);
    peer.challenge();
    peer.prove();
    const auto theirs = peer.receive<OfferMessage>();
    ASSERT_TRUE(theirs);
    OfferMessage offer = peer.make_offer();
    offer.host = theirs->host;
    offer.devices[0].has_probe = 1;
    offer.devices[0].probe =
        elsewhere.export_memory(0, address_of(elsewhere.make_memory(bytes)))->handle;
    peer.send(offer);
    const auto answer = peer.receive<MappableMessage>();
    ASSERT_TRUE(answer) << bytes;
    EXPECT_EQ(answer->mappable, bytes == Prober::kLargestBytes ? 1u : 0u);
    EXPECT_TRUE(peer.alive());
  }
}

// The limit of copies without a half of this side protects against the peer. The program may have
// begun any number of copies.
TEST(HostileTest, CopiesOfTheProgramDoNotCountAsThePeers) {
  SimSession session("v4b", quiet_options());
  const DeviceAddress memory = address_of(session.add().make_memory(1));
  RawPeer peer(session);
  peer.greet();
  constexpr uint64_t kCopies = 1u << 16;
  for (uint64_t id = 1; id <= kCopies; ++id) {
    PeerCopy copy;
    copy.id = id;
    copy.peer = 1;
    copy.outgoing = true;
    copy.memory = Shape::plain(memory, 1);
    copy.peer_has_stream = true;  // so the copy waits for Ready
    session.core(0).copy(std::move(copy), StreamPlace::kNone, {});
  }
  ReadyMessage ready;
  ready.copy = kCopies + 1;
  peer.send(ready);
  EXPECT_TRUE(peer.alive()) << peer.lost().message();
}

template <typename Message>
Message message_of(const std::array<uint64_t, 40>& words) {
  static_assert(sizeof(Message) <= sizeof words);
  return *parse<Message>(std::as_bytes(std::span(words)).first(sizeof(Message)));
}

TEST(HostileTest, AFrameOfSeveralMessagesIsTakenUpToTheOneThatCannotBe) {
  SimSession session("auto", quiet_options());
  session.add();
  RawPeer peer(session);
  peer.greet();
  EchoMessage echoes[3];
  for (uint64_t i = 0; i < 3; ++i) echoes[i].tag = 5 + i;
  const auto bytes = std::as_bytes(std::span(echoes));
  const auto expect_echoed = [&](uint64_t tag) {
    const auto echoed = peer.receive_as<EchoMessage>(MessageKind::kEchoed);
    ASSERT_TRUE(echoed);
    EXPECT_EQ(echoed->tag, tag);
  };
  peer.send_bytes(bytes);
  for (uint64_t tag : {5, 6, 7}) expect_echoed(tag);
  EXPECT_TRUE(peer.alive());
  set_log_level(LogLevel::kOff);
  peer.send_bytes(bytes.first(2 * sizeof(EchoMessage) + 8));  // the third is cut off
  for (uint64_t tag : {5, 6}) expect_echoed(tag);
  EXPECT_FALSE(peer.alive());
  set_log_level(LogLevel::kWarn);
}

// An authenticated peer may send anything: the engine does not crash, accesses only staging memory
// and the memory of copies (SimDevices checks every copy), and its own copies end.
TEST(HostileTest, RandomMessagesNeverHarm) {
  set_log_level(LogLevel::kOff);  // hundreds of ended connections
  std::mt19937_64 random(11);
  for (int round = 0; round < 300; ++round) {
    SimSession session("auto", quiet_options());
    SimDevices& devices = session.add();
    devices.allow_ipc(round % 2 == 0);
    devices.allow_gpudirect(round % 3 == 0);
    RawPeer peer(session, round % 2 == 0 ? "verbs" : "tcp");
    peer.greet();
    const uint64_t stream = devices.make_stream();
    int over = 0;
    for (uint64_t id = 1; id <= 4; ++id) {
      CopyRequest request;
      request.id = id;
      request.source = Shape::plain(address_of(devices.make_memory(1 << 16)), 1 << 16);
      request.destination = request.source;
      request.source_stream = stream;
      PeerCopy half = id % 2 == 0 ? sending_half(request) : receiving_half(request);
      half.peer = 1;
      half.done = [&](const Status&) { ++over; };
      session.core(0).copy(half, place_in(devices, stream), {});
    }
    for (int i = 0; i < 60 && peer.alive(); ++i) {
      std::array<uint64_t, 40> words{};
      words[0] = (1 + random() % 19) | (random() % 4) << 32;
      for (size_t w = 1; w < words.size(); ++w) {
        words[w] = random() % 3 == 0 ? random() : random() % 6;
        if (random() % 4 == 0) words[w] = 1 << 16;
      }
      switch (static_cast<MessageKind>(words[0] & 0xff)) {
        case MessageKind::kChunk: {
          auto message = message_of<ChunkMessage>(words);
          if (random() % 2 == 0) {
            message.where = static_cast<Where>(1 + random() % 3);
            message.offset = 0;
            message.bytes = message.total = 1 << 16;
            message.slot = random() % (1 << 20);
          }
          peer.send(message);
          break;
        }
        case MessageKind::kReady:
        case MessageKind::kWant: {
          auto message = message_of<ReadyMessage>(words);
          peer.send(message);
          break;
        }
        case MessageKind::kTarget: {
          auto message = message_of<TargetMessage>(words);
          peer.send(message);
          break;
        }
        case MessageKind::kPull: {
          auto message = message_of<PullMessage>(words);
          peer.send(message);
          break;
        }
        case MessageKind::kDone:
        case MessageKind::kAbort: {
          auto message = message_of<EndMessage>(words);
          peer.send(message);
          break;
        }
        case MessageKind::kForget: {
          auto message = message_of<ForgetMessage>(words);
          peer.send(message);
          break;
        }
        case MessageKind::kConsumed:
          peer.send(message_of<ConsumedMessage>(words));
          break;
        default: {
          auto message = message_of<EchoMessage>(words);
          message.kind = MessageKind::kEcho;
          peer.send(message);
        }
      }
    }
    session.core(0).peer(1).lose({Code::kUnavailable, "enough"});
    session.settle();
    EXPECT_EQ(over, 4);
    EXPECT_EQ(devices.held_places(), 0u);
  }
  set_log_level(LogLevel::kWarn);
}

}  // namespace
}  // namespace rcuda::p2p
