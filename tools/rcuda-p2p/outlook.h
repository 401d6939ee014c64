// The simulated outlook: the planner's model with links and buses that are not available for
// measurement.
//
// outlook.cpp holds the assumptions, one constant each with its origin: measured on the target,
// published, or a projection. The results depend on nothing else; docs/p2p.md has a part of the
// output.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "p2p/plan/planner.h"

namespace rcuda::tools {

struct Bus {
  const char* name;
  double gbps;  // x16, one direction, as reached by copies
};
struct Network {
  const char* name;
  double gbps;  // payload, one direction, one port
};
enum class Gpudirect { kNone, kHostBridge, kSwitch };

const std::vector<Bus>& buses();
const std::vector<Network>& networks();
const char* to_string(Gpudirect gpudirect);

p2p::PairModel outlook_model(const Bus& bus, const Network& network, Gpudirect gpudirect);
// The time of CUDA's own copy between two GPUs of one node without peer access.
double native_copy_us(const Bus& bus, uint64_t bytes);

// The tables as Markdown.
std::string outlook_markdown();

}  // namespace rcuda::tools
