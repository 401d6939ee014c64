// Workers of one session in a simulated world, connected in pairs. Shared by the tests of the
// pipeline.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/p2p_world.h"

namespace rcuda::p2p {

using testing::SimDevices;
using testing::SimLinkPair;
using testing::SimWire;
using testing::SimWorld;
using testing::Speed;

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;

// How long this many bytes take at this many GB/s.
inline double us_at(uint64_t bytes, double gbps) {
  return static_cast<double>(bytes) / gbps * 1e-3;
}

inline SessionToken token_of(uint8_t fill) {
  SessionToken token;
  token.fill(std::byte{fill});
  return token;
}

struct Worker {
  std::unique_ptr<SimDevices> devices;
  std::unique_ptr<Core> core;
};

class SimSession {
 public:
  explicit SimSession(const std::string& strategy = "auto", EngineOptions options = {},
                      const std::string& path = "")
      : options_(std::move(options)) {
    options_.planner = *parse_planner_options(strategy, path);
  }
  ~SimSession() {
    workers.clear();
    EXPECT_TRUE(world.violations.empty()) << world.violations.front();
  }

  // Adds a worker. Configure its devices before connecting it.
  SimDevices& add(int devices = 1) {
    const std::string name = std::to_string(workers.size());
    Worker worker;
    worker.devices = std::make_unique<SimDevices>(world, name, devices);
    workers.push_back(std::move(worker));
    return *workers.back().devices;
  }
  Core& core(size_t worker) {
    Worker& of = workers[worker];
    if (!of.core) {
      EngineOptions options = options_;
      options.host_name = "node" + std::to_string(worker);
      of.core = std::make_unique<Core>(
          *of.devices, options, [this] { return world.now_ns(); }, [] {});
    }
    return *of.core;
  }
  // Attaches the two ends. The greeting happens in run() or settle().
  SimLinkPair connect(size_t a, size_t b, const char* medium, const SimWire& wire = {}) {
    SimLinkPair pair = testing::make_sim_links(world, medium, wire);
    core(a).peer(static_cast<PeerId>(b)).attach(std::move(pair.first), token_of(7), true);
    core(b).peer(static_cast<PeerId>(a)).attach(std::move(pair.second), token_of(7), false);
    return pair;
  }
  std::vector<Core*> cores() {
    std::vector<Core*> all;
    for (Worker& worker : workers) {
      if (worker.core) all.push_back(worker.core.get());
    }
    return all;
  }
  void settle() { world.settle(cores()); }
  bool run(const std::function<bool()>& done) { return world.run(cores(), done); }

  SimWorld world;
  std::vector<Worker> workers;

 private:
  EngineOptions options_;
};

// The outcome of both halves of a copy.
struct CopyResult {
  bool source_over = false;
  bool destination_over = false;
  Status source;
  Status destination;
  double over_us = 0;
  bool over() const { return source_over && destination_over; }
};

struct CopyRequest {
  uint64_t id = 1;
  size_t from = 0;
  size_t to = 1;
  Shape source;
  Shape destination;
  uint64_t source_stream = 0;  // 0: none
  bool follows = false;        // StreamRef::follows of the source's stream
  uint64_t destination_stream = 0;
  int source_device = 0;
  int destination_device = 0;
};

inline PeerCopy sending_half(const CopyRequest& request) {
  PeerCopy copy;
  copy.id = request.id;
  copy.peer = static_cast<PeerId>(request.to);
  copy.outgoing = true;
  copy.device = request.source_device;
  copy.peer_device = request.destination_device;
  copy.memory = request.source;
  copy.peer_has_stream = request.destination_stream != 0;
  if (request.source_stream != 0) {
    copy.stream = StreamRef{request.source_stream, 0};
    copy.stream->follows = request.follows;
  }
  return copy;
}

inline PeerCopy receiving_half(const CopyRequest& request) {
  PeerCopy copy;
  copy.id = request.id;
  copy.peer = static_cast<PeerId>(request.from);
  copy.outgoing = false;
  copy.device = request.destination_device;
  copy.memory = request.destination;
  if (request.destination_stream != 0) copy.stream = StreamRef{request.destination_stream, 0};
  return copy;
}

inline StreamPlace place_in(SimDevices& devices, uint64_t stream, bool follows = false) {
  StreamRef ref{stream, 0};
  ref.follows = follows;
  return stream == 0 ? StreamPlace::kNone : *devices.enter(ref, true);
}

// Gives both workers their halves of the copy, the sender first.
inline std::shared_ptr<CopyResult> start_copy(SimSession& session, const CopyRequest& request) {
  auto result = std::make_shared<CopyResult>();
  PeerCopy sending = sending_half(request);
  sending.done = [result, &world = session.world](const Status& status) {
    EXPECT_FALSE(result->source_over);
    result->source_over = true;
    result->source = status;
    result->over_us = world.now_us();
  };
  PeerCopy receiving = receiving_half(request);
  receiving.done = [result, &world = session.world](const Status& status) {
    EXPECT_FALSE(result->destination_over);
    result->destination_over = true;
    result->destination = status;
    result->over_us = world.now_us();
  };
  SimDevices& source = *session.workers[request.from].devices;
  SimDevices& destination = *session.workers[request.to].devices;
  session.core(request.from)
      .copy(std::move(sending), place_in(source, request.source_stream, request.follows), {});
  session.core(request.to)
      .copy(std::move(receiving), place_in(destination, request.destination_stream), {});
  return result;
}

inline uint64_t address_of(const std::byte* memory) { return reinterpret_cast<uint64_t>(memory); }

// Fills memory with a pseudo-random pattern, so that misplaced bytes are detected.
inline void fill(std::byte* memory, size_t bytes, uint32_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (size_t i = 0; i < bytes; i += 8) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const uint64_t word = state >> 13;
    std::memcpy(memory + i, &word, std::min<size_t>(8, bytes - i));
  }
}

}  // namespace rcuda::p2p
