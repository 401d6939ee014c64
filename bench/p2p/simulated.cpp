// Two engines with simulated devices, links and time (tests/support/p2p_world.h): peer copies over
// links that are not available here, such as RDMA with and without GPUDirect. Used by ablation.py.
//
//   simulated --link NAME [--measure on|off] [--sizes 64K,1M,...] [--passes start,settled,loaded]
//   simulated --list
//
// A pass goes through all sizes once: `start` right after the peers are connected, `settled` when
// all legs are measured, `loaded` with buses half as fast as they were measured. Prints CSV, in
// simulated us: the mean of single copies (in `settled` and `loaded`, of their last half), and the
// time per copy of a train.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "common/config/command_line.h"
#include "tests/support/p2p_world.h"

namespace {

using namespace rcuda;
using testing::SimDevices;
using testing::SimWire;
using testing::SimWorld;
using testing::Speed;

struct LinkKind {
  const char* name;
  const char* medium;
  SimDevices::Speeds source, destination;
  SimWire wire;
  bool gpudirect;
};

// Latency in us, GB/s, delay in us.
constexpr SimDevices::Speeds kPcie5{{8, 55, 0}, {8, 55, 0}, {4, 1500, 0}};
constexpr SimDevices::Speeds kPcie3{{8, 12, 0}, {8, 12, 0}, {4, 400, 0}};
const LinkKind kLinks[] = {
    {"verbs-hdr", "verbs", kPcie5, kPcie5, {{1, 24, 2}, 2, 0}, false},
    {"verbs-hdr-gpudirect", "verbs", kPcie5, kPcie5, {{1, 24, 2}, 2, 0}, true},
    {"verbs-fdr", "verbs", kPcie3, kPcie3, {{1, 6, 2}, 2, 0}, false},
    {"verbs-fdr-gpudirect", "verbs", kPcie3, kPcie3, {{1, 6, 2}, 2, 0}, true},
    {"verbs-asymmetric", "verbs", kPcie5, kPcie3, {{1, 24, 2}, 2, 0}, false},
    {"verbs-uneven-gpudirect", "verbs", kPcie5, kPcie5, {{1, 24, 2}, 2, 40}, true},
    {"shm-pcie5", "shm", kPcie5, kPcie5, {}, false},
    {"tcp-slow", "tcp", kPcie5, kPcie5, {{10, 1.2, 20}, 15, 30}, false},
};

[[noreturn]] void die(const std::string& why) {
  std::fprintf(stderr, "simulated: %s\n", why.c_str());
  std::exit(1);
}

class Pair {
 public:
  Pair(const LinkKind& kind, bool measure) : kind_(kind) {
    for (int side = 0; side < 2; ++side) {
      devices_[side] = std::make_unique<SimDevices>(world_, std::to_string(side), 1);
      devices_[side]->set_speeds(side == 0 ? kind.source : kind.destination);
      devices_[side]->allow_gpudirect(kind.gpudirect);
      p2p::EngineOptions options;
      options.host_name = "node" + std::to_string(side);
      options.measure = measure;
      cores_[side] = std::make_unique<p2p::Core>(
          *devices_[side], options, [this] { return world_.now_ns(); }, [] {});
      memory_[side] = devices_[side]->make_memory(kMost);
    }
    stream_ = devices_[0]->make_stream();
    testing::SimLinkPair links = testing::make_sim_links(world_, kind.medium, kind.wire);
    p2p::SessionToken token{};
    cores_[0]->peer(1).attach(std::move(links.first), token, true);
    cores_[1]->peer(0).attach(std::move(links.second), token, false);
    if (!run([&] { return cores_[0]->peer(1).open() && cores_[1]->peer(0).open(); })) {
      die("no connection");
    }
    pass_us(1000);
    world_.move_bytes = false;
  }

  // Runs the simulated world until both engines are idle. Otherwise the engines' destructors would
  // wait forever for work in flight, because simulated time passes only while the world runs.
  ~Pair() { world_.settle(cores()); }

  // Lets half a second pass, in steps, because simulated time passes only with events.
  void settle() {
    for (int i = 0; i < 500; ++i) pass_us(1000);
  }
  void load() {
    for (int side = 0; side < 2; ++side) {
      SimDevices::Speeds speeds = side == 0 ? kind_.source : kind_.destination;
      for (Speed* speed : {&speeds.out, &speeds.in}) speed->gbps /= 2;
      devices_[side]->set_speeds(speeds);
    }
  }
  void measure(const std::string& pass, uint64_t bytes) {
    constexpr int kTrain = 8;
    std::vector<double> times;
    for (int i = 0; i < (pass == "start" ? 5 : 40); ++i) times.push_back(copies_us(bytes, 1));
    const auto from = times.begin() + (pass == "start" ? 0 : 20);
    const double single_us =
        std::accumulate(from, times.end(), 0.0) / static_cast<double>(times.end() - from);
    const double train_us = copies_us(bytes, kTrain) / kTrain;
    std::printf("%s,%llu,%.3f,%.3f\n", pass.c_str(), static_cast<unsigned long long>(bytes),
                single_us, train_us);
  }

  static constexpr uint64_t kMost = uint64_t{256} << 20;

 private:
  std::vector<p2p::Core*> cores() { return {cores_[0].get(), cores_[1].get()}; }
  bool run(const std::function<bool()>& done) { return world_.run(cores(), done); }

  void pass_us(double us) {
    bool passed = false;
    world_.after_us(us, [&] { passed = true; });
    run([&] { return passed; });
  }
  // Time of `copies` copies in one stream, each directly after the previous one.
  double copies_us(uint64_t bytes, int copies) {
    const double begin_us = world_.now_us();
    int over = 0;
    for (int i = 0; i < copies; ++i) {
      ++id_;
      for (const int side : {0, 1}) {
        p2p::PeerCopy copy;
        copy.id = id_;
        copy.peer = static_cast<p2p::PeerId>(1 - side);
        copy.outgoing = side == 0;
        copy.memory = p2p::Shape::plain(reinterpret_cast<uint64_t>(memory_[side]), bytes);
        copy.done = [&over](const Status& status) {
          if (!status.ok()) die(status.message());
          ++over;
        };
        p2p::StreamPlace place = p2p::StreamPlace::kNone;
        if (side == 0) {
          copy.stream = p2p::StreamRef{stream_, 0};
          copy.stream->follows = i > 0;
          place = *devices_[0]->enter(*copy.stream, true);
        }
        cores_[side]->copy(std::move(copy), place, {});
      }
    }
    if (!run([&] { return over == 2 * copies; })) die("a copy does not end");
    return world_.now_us() - begin_us;
  }

  const LinkKind& kind_;
  SimWorld world_;
  std::unique_ptr<SimDevices> devices_[2];
  std::unique_ptr<p2p::Core> cores_[2];
  std::byte* memory_[2] = {};
  uint64_t stream_ = 0;
  uint64_t id_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  std::string link;
  std::string measure = "on";
  std::vector<uint64_t> sizes{64u << 10, 512u << 10, 4u << 20, 16u << 20, 64u << 20};
  std::vector<std::string> passes{"start", "settled", "loaded"};
  bool list = false;
  config::CommandLine line("", "Peer copies in a simulated world, as CSV");
  line.option("--link", &link);
  line.option("--measure", &measure).one_of({"on", "off"});
  line.option("--sizes", &sizes).separated_by(',').as_bytes();
  line.option("--passes", &passes).separated_by(',').one_of({"start", "settled", "loaded"});
  line.flag("--list", &list);
  if (const std::optional<int> status = line.parse(argc, argv)) return *status;
  if (list) {
    for (const LinkKind& kind : kLinks) std::printf("%s\n", kind.name);
    return 0;
  }
  const auto* const kind = std::find_if(std::begin(kLinks), std::end(kLinks),
                                        [&](const LinkKind& each) { return link == each.name; });
  if (kind == std::end(kLinks)) die("no such link: " + link);
  if (sizes.empty() || *std::max_element(sizes.begin(), sizes.end()) > Pair::kMost) {
    die("sizes are at most 256M");
  }
  Pair pair(*kind, measure == "on");
  std::printf("pass,bytes,single_us,train_us\n");
  for (const std::string& pass : passes) {
    if (pass != "start") pair.settle();
    if (pass == "loaded") pair.load();
    for (const uint64_t bytes : sizes) pair.measure(pass, bytes);
  }
  return 0;
}
