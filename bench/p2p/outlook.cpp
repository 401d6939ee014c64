// The simulated outlook: the planner's model with links and buses that are not available for
// measurement. Prints the tables as Markdown; docs/p2p_measurements.md has some.
//
// The assumptions are the constants below, each with its origin: measured on the target, published,
// or a projection. The results depend on nothing else.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>

#include "common/base/units.h"
#include "p2p/plan/planner.h"

namespace {

using namespace rcuda;
using p2p::LegModel;

// A copy between a GPU and pinned host memory: time before the first byte (measured on an H200: a
// queue of 64 KB copies), and delay until delivery (a single 4-byte copy takes 7 us).
constexpr double kCopyBusyUs = 1.5;
constexpr double kCopyDelayUs = 5.0;
// A copy within a GPU; its bandwidth is far above any bus.
constexpr double kDeviceBusyUs = 1.5;
constexpr double kDeviceDelayUs = 4.0;
constexpr double kDeviceGbps = 1000;
// RDMA write of a queue pair: vendors state about 1 us from post to the remote memory.
constexpr double kWireBusyUs = 0.3;
constexpr double kWireDelayUs = 1.2;
// A message to the peer's memory and the engine's reaction.
constexpr double kMessageUs = 2.0;
// GPUDirect through the host bridge: processors forward PCIe reads between root ports far below the
// speed of the bus. The testbed on which the strategies were published (Sandy Bridge, PCIe 2)
// reached 0.9 GB/s of 6 GB/s; later processors reach about half.
constexpr double kHostBridgeShare = 0.5;
constexpr double kPublishedBridgeShare = 0.15;
// Registering and deregistering a GPU range: about 100 us and 1 us per MB with pinned page tables.
constexpr double kRegisterUs = 100;
constexpr double kRegisterGbps = 1000;
// CUDA's own copy with peer access off, measured on two H200s: 24 us and 0.69 of the bus.
constexpr double kNativeUs = 24;
constexpr double kNativeShare = 0.69;

constexpr uint64_t kSizes[] = {4096, 65'536, 200u << 10, 1u << 20, 4u << 20, 16u << 20, 256u << 20};

struct Bus {
  const char* name;
  double gbps;  // x16, one direction, as reached by copies
};
constexpr Bus kBuses[] = {
    {"PCIe 2", 6.0},   // the testbed of the published strategies
    {"PCIe 3", 12.3},  // as commonly measured
    {"PCIe 4", 25.0},  // as commonly measured
    {"PCIe 5", 55.4},  // measured on the target
    {"PCIe 6", 110},   // projection: twice PCIe 5
};

struct Network {
  const char* name;
  double gbps;  // payload, one direction, one port
};
// Signalling rate minus encoding and headers, as perftest usually shows.
constexpr Network kNetworks[] = {{"FDR", 6.2}, {"EDR", 12.0}, {"HDR", 24.2}, {"NDR", 48.5}};

constexpr const char* kNoGpudirect = "no";
constexpr const char* kHostBridge = "host bridge";
constexpr const char* kOneSwitch = "one switch";

p2p::PairModel outlook_model(const Bus& bus, const Network& network, const char* gpudirect) {
  p2p::PairModel model;
  model.copy_out = LegModel::linear(kCopyBusyUs, bus.gbps, kCopyDelayUs);
  model.copy_in = LegModel::linear(kCopyBusyUs, bus.gbps, kCopyDelayUs);
  // The NIC is on the same kind of bus, so the slower of the two decides.
  const double wire = std::min(network.gbps, bus.gbps);
  model.wire_verbs = LegModel::linear(kWireBusyUs, wire, kWireDelayUs);
  model.device_out = LegModel::linear(kDeviceBusyUs, kDeviceGbps, kDeviceDelayUs);
  model.device_in = LegModel::linear(kDeviceBusyUs, kDeviceGbps, kDeviceDelayUs);
  model.registration = LegModel::linear(kRegisterUs, kRegisterGbps);
  if (gpudirect == kOneSwitch) {
    model.gpudirect = LegModel::linear(kWireBusyUs, wire, kWireDelayUs);
  } else if (gpudirect == kHostBridge) {
    const double share = &bus == kBuses ? kPublishedBridgeShare : kHostBridgeShare;
    model.gpudirect = LegModel::linear(kWireBusyUs, std::min(wire, share * bus.gbps), kWireDelayUs);
  }
  model.message_us = kMessageUs;
  return model;
}

// The time of CUDA's own copy between two GPUs of one node without peer access.
double native_copy_us(const Bus& bus, uint64_t bytes) {
  return kNativeUs + static_cast<double>(bytes) / (kNativeShare * bus.gbps) * 1e-3;
}

double gbps(uint64_t bytes, double us) { return static_cast<double>(bytes) / us * 1e-3; }

// Returns the smallest size with this property: the automatic plan is faster than CUDA's own copy
// for it and for all larger sizes. Returns 0 if CUDA's copy is faster for the largest size.
uint64_t ahead_from(p2p::Planner& planner, const Bus& bus) {
  uint64_t from = 0;
  for (uint64_t bytes = 4096; bytes <= (256u << 20); bytes *= 2) {
    const auto plan = planner.plan(bytes, true);
    const bool ahead = plan && plan->predicted_us < native_copy_us(bus, bytes);
    if (!ahead) {
      from = 0;
    } else if (from == 0) {
      from = bytes;
    }
  }
  return from;
}

void print_row(const Bus& bus, const Network& network, const char* gpudirect) {
  p2p::Planner planner({}, {.verbs = true, .gpudirect = gpudirect != kNoGpudirect},
                       outlook_model(bus, network, gpudirect));
  std::printf("| %s | %s | %s |", bus.name, network.name, gpudirect);
  for (const uint64_t bytes : kSizes) {
    const auto plan = planner.plan(bytes, true);
    std::printf(" %.2f %s |", gbps(bytes, plan->predicted_us), p2p::to_string(plan->staging));
  }
  const uint64_t from = ahead_from(planner, bus);
  std::printf(" %s |\n", from == 0 ? "never" : bytes_text(from).c_str());
}

}  // namespace

int main() {
  std::printf(
      "GB/s of the automatic plan and where it stages, by copy size. \"Native\" is CUDA's own\n"
      "copy between two GPUs of one node with peer access off; \"ahead from\" the size from which "
      "on\n"
      "the copy between servers is the faster of the two.\n\n"
      "| bus | network | GPUDirect |");
  for (const uint64_t bytes : kSizes) std::printf(" %s |", bytes_text(bytes).c_str());
  std::printf(" ahead from |\n|---|---|---|");
  for (size_t i = 0; i < std::size(kSizes); ++i) std::printf("---|");
  std::printf("---|\n");
  for (const Bus& bus : kBuses) {
    std::printf("| %s | native | |", bus.name);
    for (const uint64_t bytes : kSizes)
      std::printf(" %.2f |", gbps(bytes, native_copy_us(bus, bytes)));
    std::printf(" |\n");
    for (const Network& network : kNetworks) {
      // Networks that are faster than the bus all have the bus's speed: only the first of them is
      // shown.
      const bool beyond =
          network.gbps > bus.gbps && &network != kNetworks && (&network - 1)->gbps > 0.9 * bus.gbps;
      if (beyond) continue;
      for (const char* const gpudirect : {kNoGpudirect, kHostBridge, kOneSwitch}) {
        print_row(bus, network, gpudirect);
      }
    }
  }
}
