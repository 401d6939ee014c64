// The peer fuzzer's work on one input. fuzz_replay_test runs it over fixed mutations, too.
//
// A worker of the same session, which knows the secret, sends arbitrary messages to the
// peer-to-peer engine while copies in both directions are in progress. The engine must touch only
// its own memory (SimDevices checks every copy) and release every stream, and every copy must end.
// The first byte chooses the capabilities of the two ends; the rest is a list of messages: u8 size
// in words of eight bytes, then the message.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "tests/unit/p2p/copy/raw_peer.h"

namespace rcuda::fuzz {

inline constexpr size_t kPeerCopyBytes = 1u << 16;

inline void fuzz_peer(const uint8_t* data, size_t size) {
  if (size == 0) return;
  p2p::SimSession session("auto", p2p::quiet_options());
  p2p::SimDevices& devices = session.add();
  devices.allow_ipc(data[0] & 1);
  devices.allow_gpudirect(data[0] & 2);
  p2p::RawPeer peer(session, data[0] & 4 ? "verbs" : "tcp");
  if (data[0] & 8) peer.greet();
  const uint64_t stream = devices.make_stream();
  int over = 0;
  for (uint64_t id = 1; id <= 4; ++id) {
    p2p::CopyRequest request;
    request.id = id;
    request.source =
        p2p::Shape::plain(p2p::address_of(devices.make_memory(kPeerCopyBytes)), kPeerCopyBytes);
    request.destination = request.source;
    request.source_stream = stream;
    p2p::PeerCopy half = id % 2 == 0 ? sending_half(request) : receiving_half(request);
    half.peer = 1;
    half.done = [&](const Status&) { ++over; };
    session.core(0).copy(half, p2p::place_in(devices, stream), {});
  }
  for (size_t at = 1; at < size && peer.alive();) {
    const size_t bytes = std::min<size_t>(8 * size_t{data[at]}, size - at - 1);
    peer.send_bytes(std::as_bytes(std::span(data + at + 1, bytes)));
    at += 1 + bytes;
  }
  session.core(0).peer(1).lose({Code::kUnavailable, "enough"});
  session.settle();
  if (over != 4 || devices.held_places() != 0 || !session.world.violations.empty()) std::abort();
}

inline std::vector<std::string> peer_corpus() {
  const auto message = [](const auto& body) {
    static_assert(sizeof body % 8 == 0);
    std::string text(1, static_cast<char>(sizeof body / 8));
    return text.append(reinterpret_cast<const char*>(&body), sizeof body);
  };
  p2p::ReadyMessage ready;
  ready.copy = 2;
  p2p::ChunkMessage chunk;
  chunk.copy = 1;
  chunk.bytes = chunk.total = kPeerCopyBytes;
  p2p::ChunkMessage coming = chunk;  // announced, but never sent
  coming.copy = 3;
  coming.immediate = coming.slot_wanted = 1;
  p2p::EndMessage given_up = p2p::make_end(p2p::MessageKind::kAbort, 3, {Code::kInternal, "no"});
  given_up.chunks = 1;
  p2p::ConsumedMessage consumed;
  consumed.copy = 2;
  consumed.chunks = 1;
  p2p::TargetMessage target;
  target.copy = 4;
  p2p::PullMessage pull;
  pull.copy = 3;
  const std::string copies = message(ready) + message(chunk) + message(consumed) +
                             message(p2p::make_end(p2p::MessageKind::kDone, 2, {})) +
                             message(p2p::make_end(p2p::MessageKind::kAbort, 3, {}));
  const std::string aborted = message(coming) + message(given_up);
  const std::string others = message(p2p::SignalMessage{}) + message(p2p::EchoMessage{}) +
                             message(p2p::ForgetMessage{}) + message(target) + message(pull);
  std::vector<std::string> corpus;
  for (char ends = 0; ends < 16; ++ends) {
    corpus.push_back(std::string(1, ends) + copies + others);
    corpus.push_back(std::string(1, ends) + aborted + others);
    corpus.push_back(std::string(1, ends) + message(p2p::ChallengeMessage{}) +
                     message(p2p::ProofMessage{}) + others + copies);
  }
  return corpus;
}

}  // namespace rcuda::fuzz
