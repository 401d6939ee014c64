#include "tools/rcuda-smi/topology.h"

#include <fmt/format.h>

#include "common/nvml/nvml_api.h"
#include "tools/rcuda-p2p/live_plan.h"
#include "tools/rcuda-smi/figures.h"

namespace rcuda::smi {
namespace {

constexpr uint64_t kLatencyBytes = 8, kBandwidthBytes = 64ull << 20;

struct Place {
  const Look* look;
  size_t gpu;  // by its place in the report
  const wire::GpuReport::Gpu& report() const { return look->gpus.gpus[gpu]; }
  std::string name() const { return fmt::format("{} {}", look->server, report().ordinal); }
};

std::string way(const Place& from, const Place& to) {
  if (from.look != to.look) return "NET";
  if (from.gpu == to.gpu) return "X";
  const std::vector<wire::GpuReport::Path>& paths = from.report().paths;
  if (to.gpu >= paths.size()) return "-";
  const wire::GpuReport::Path& path = paths[to.gpu];
  if (path.p2p_status.size() > NVML_P2P_CAPS_INDEX_NVLINK &&
      path.p2p_status[NVML_P2P_CAPS_INDEX_NVLINK] == NVML_P2P_STATUS_OK) {
    return "NVL";
  }
  switch (path.ancestor) {
    case NVML_TOPOLOGY_INTERNAL: return "INT";
    case NVML_TOPOLOGY_SINGLE: return "PIX";
    case NVML_TOPOLOGY_MULTIPLE: return "PXB";
    case NVML_TOPOLOGY_HOSTBRIDGE: return "PHB";
    case NVML_TOPOLOGY_NODE: return "NODE";
    case NVML_TOPOLOGY_SYSTEM: return "SYS";
    default: return "-";
  }
}

// As RCUDA_DEVICES has it: host@port:gpu.
std::string device_of(const Look& look) {
  std::string server = look.server;
  server[server.rfind(':')] = '@';
  return fmt::format("{}:{}", server, look.status.devices.front().ordinal);
}

std::string measured(const Look& from, const Look& to) {
  tools::LiveQuery query;
  query.from = device_of(from);
  query.to = device_of(to);
  query.sizes = {kLatencyBytes, kBandwidthBytes};
  std::vector<tools::LiveCopy> copies;
  const Status status = tools::measure_copies(
      query, [](const std::string&) {}, [&](const tools::LiveCopy& copy) { copies.push_back(copy); });
  const std::string pair = fmt::format("{} to {}", query.from, query.to);
  if (!status.ok()) return fmt::format("{}: {}\n", pair, status.context());
  return fmt::format("{}: {:.1f} us, {:.2f} GB/s ({})\n", pair, copies.at(0).measured_us,
                     copies.at(1).gbps(), tools::printable(copies.at(1).plan));
}

}  // namespace

std::string matrix_of(const std::vector<Look>& looks) {
  std::vector<Place> places;
  for (const Look& look : looks) {
    for (size_t gpu = 0; gpu < look.gpus.gpus.size(); ++gpu) places.push_back({&look, gpu});
  }
  std::string text = fmt::format("{:<24}", "");
  for (size_t i = 0; i < places.size(); ++i) text += fmt::format(" {:>4}", i);
  for (size_t i = 0; i < places.size(); ++i) {
    text += fmt::format("\n{:>3} {:<20}", i, places[i].name());
    for (const Place& to : places) text += fmt::format(" {:>4}", way(places[i], to));
  }
  return text + "\n";
}

std::string network_of(const std::vector<Look>& looks) {
  std::string text;
  for (const Look& from : looks) {
    for (const Look& to : looks) {
      if (&from == &to || from.status.devices.empty() || to.status.devices.empty()) continue;
      text += measured(from, to);
    }
  }
  return text;
}

}  // namespace rcuda::smi
