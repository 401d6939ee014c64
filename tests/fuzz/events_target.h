// The event fuzzer's work on one input. fuzz_replay_test runs it over fixed mutations, too.
//
// Tests what a client accepts from its worker: the input fills the event ring, and a real
// WorkerEvents reads it to its end. First byte 0: the rest is the ring's memory. Otherwise the rest
// is a list of events: u8 size, then that many bytes as a frame. The client knows callbacks 1 to 4;
// 2 and 4 belong to a graph.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "client/session/worker_events.h"
#include "common/wire/protocol.h"
#include "common/wire/ring.h"
#include "tests/fuzz/memory_link.h"

namespace rcuda::fuzz {

inline void fuzz_events(const uint8_t* data, size_t size) {
  static size_t used = 0;  // bytes of the ring, by the previous input
  if (size == 0 || size > wire::ClientWindow::kEventRingBytes) return;
  // Static, because clearing megabytes each time would take most of the time.
  static std::vector<std::byte> client(wire::ClientWindow::kBytes);
  static std::vector<std::byte> worker(wire::WorkerWindow::kBytes);
  constexpr size_t kWords = 16u << 10;  // before the rings and slots of either window
  constexpr size_t kMostOfAByte = 32;   // a frame of one byte takes less room in the ring
  const auto ring_memory = client.begin() + wire::ClientWindow::kEventRing;
  std::fill_n(client.begin(), kWords, std::byte{0});
  std::fill_n(worker.begin(), kWords, std::byte{0});
  std::fill_n(ring_memory, std::min(used, size_t{wire::ClientWindow::kEventRingBytes}),
              std::byte{0});
  used = size * kMostOfAByte;
  MemoryLink link(client, worker);
  if (data[0] == 0) {
    std::memcpy(client.data() + wire::ClientWindow::kEventRing, data + 1, size - 1);
  } else {
    MemoryLink other(worker, client);
    wire::RingWriter ring(other, wire::kEventRingLayout);
    for (size_t at = 1; at < size;) {
      const size_t bytes = std::min<size_t>(data[at], size - at - 1);
      const auto frame = std::as_bytes(std::span(data + at + 1, bytes));
      if (!frame.empty() && !ring.append(frame, {}, transport::Wake::kYes).ok()) break;
      at += 1 + bytes;
    }
  }
  std::atomic<int> ran{0};  // before the events, whose end still runs callbacks
  client::WorkerEvents events(link);
  events.set_mirror_hooks([](uint64_t) {}, [](uint64_t) {});
  events.set_notice_sink([](bool, const std::string&) {});
  if (!events.start().ok()) return;
  for (int i = 0; i < 2; ++i) {
    (void)events.add_callback([&](CUresult) { ++ran; });
    client::WorkerEvents::GraphCallback callback;
    callback.function = callback.released = [&] { ++ran; };
    callback.is_internal = i == 0;
    (void)events.add_graph_callback(callback);
  }
  events.drain_output();
}

inline std::vector<std::string> events_corpus() {
  const auto frame = [](const auto& body, const std::string& behind = "") {
    std::string text(1, static_cast<char>(sizeof body + behind.size()));
    text.append(reinterpret_cast<const char*>(&body), sizeof body);
    return text + behind;
  };
  using wire::Event;
  const wire::ReadyEvent ready{{wire::Event::kReady, 40}, 1, 1u << 21, 2, 4096, 64};
  const wire::OutputEvent output{{Event::kOutput, 8}, 0, 4};
  const wire::NoticeEvent notice{{Event::kNotice, 12}, 1, 4};
  const wire::TraceEvent traced{1, 2, 3, 4, 5, 0, 1, 0};
  const wire::EventHeader trace{Event::kTrace, sizeof traced};
  wire::HostCallbackEvent callback{};
  callback.header = {Event::kHostCallback, 32};
  callback.sequence = 1;
  std::string all(1, '\1');
  all += frame(ready) + frame(output, "text") + frame(notice, "over") +
         frame(trace, std::string(reinterpret_cast<const char*>(&traced), sizeof traced));
  for (callback.callback = 1; callback.callback <= 4; ++callback.callback) {
    callback.slot = static_cast<uint32_t>(callback.callback);
    callback.loan = callback.slot & 1;
    all += frame(callback);
    all += frame(wire::ReleasedEvent{{Event::kReleased, 8}, callback.callback});
  }
  // The same events as the ring's memory.
  std::string raw(1, '\0');
  uint64_t number = 1;
  for (size_t at = 1; at < all.size();) {
    const size_t bytes = static_cast<uint8_t>(all[at]);
    const uint64_t header = wire::frame_header(number, static_cast<uint32_t>(bytes));
    const uint64_t stamp = wire::frame_stamp(number++);
    raw.append(reinterpret_cast<const char*>(&header), sizeof header);
    raw.append(all, at + 1, bytes);
    raw.append((8 - bytes % 8) % 8, '\0');
    raw.append(reinterpret_cast<const char*>(&stamp), sizeof stamp);
    at += 1 + bytes;
  }
  return {all, raw};
}

}  // namespace rcuda::fuzz
