// Two connected workers with a stream each, between which a test copies.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/p2p/copy/session.h"

namespace rcuda::p2p {

// Without measurements, so that all copies are the test's.
inline EngineOptions quiet_options() {
  EngineOptions options;
  options.measure = false;
  return options;
}

struct TwoWorkers {
  explicit TwoWorkers(const char* medium, const std::string& strategy = "v4b", bool special = false,
                      const SimWire& wire = {}, EngineOptions options = quiet_options())
      : session(strategy, std::move(options)) {
    for (int i = 0; i < 2; ++i) {
      SimDevices& devices = session.add();
      devices.allow_gpudirect(special);
      devices.allow_ipc(special);
    }
    cable = session.connect(0, 1, medium, wire);
    session.settle();
    streams[0] = a().make_stream();
    streams[1] = b().make_stream();
  }
  SimDevices& a() { return *session.workers[0].devices; }
  SimDevices& b() { return *session.workers[1].devices; }
  std::shared_ptr<CopyResult> start(uint64_t id, uint64_t bytes) {
    CopyRequest request;
    request.id = id;
    source = a().make_memory(bytes);
    destination = b().make_memory(bytes);
    fill(source, bytes, static_cast<uint32_t>(id));
    expected.assign(source, source + bytes);
    request.source = Shape::plain(address_of(source), bytes);
    request.destination = Shape::plain(address_of(destination), bytes);
    request.source_stream = streams[0];
    request.destination_stream = streams[1];
    return start_copy(session, request);
  }
  void expect_streams_free() {
    EXPECT_TRUE(a().stream_idle(streams[0]));
    EXPECT_TRUE(b().stream_idle(streams[1]));
    EXPECT_EQ(a().held_places(), 0u);
    EXPECT_EQ(b().held_places(), 0u);
  }
  void expect_works(uint64_t id) {
    const auto result = start(id, 3 * kMiB + 5);
    session.settle();
    ASSERT_TRUE(result->over());
    ASSERT_TRUE(result->source.ok()) << result->source.message();
    EXPECT_EQ(std::memcmp(expected.data(), destination, expected.size()), 0);
  }

  SimSession session;
  SimLinkPair cable;
  uint64_t streams[2] = {};
  std::byte* source = nullptr;
  std::byte* destination = nullptr;
  std::vector<std::byte> expected;
};

}  // namespace rcuda::p2p
