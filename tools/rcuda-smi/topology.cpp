#include "tools/rcuda-smi/topology.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/units.h"
#include "common/nvml/nvml_api.h"
#include "tools/rcuda-p2p/live_plan.h"
#include "tools/rcuda-smi/figures.h"

namespace rcuda::smi {
namespace {

constexpr uint64_t kLatencyBytes = 8, kBandwidthBytes = 64ull << 20;

constexpr char kLegend[] = R"(
  X     the GPU itself
  NVL   NVLink
  INT   on one board
  PIX   behind one PCIe switch
  PXB   behind several PCIe switches
  PHB   under one PCIe host bridge
  NODE  on one NUMA node
  SYS   on different NUMA nodes
  HOST  on different servers of one machine
  NET   on different machines
  -     not known
  *     the two GPUs have the same NIC
  NIC   the RDMA adapter that is nearest to the GPU, and the path to it
)";

struct Place {
  const Look* look;
  size_t gpu;  // its position in the report
  const wire::GpuReport::Gpu& report() const { return look->gpus.gpus[gpu]; }
  std::string name() const { return fmt::format("{} {}", look->server, report().ordinal); }
};

std::vector<Place> places_of(const std::vector<Look>& looks) {
  std::vector<Place> places;
  for (const Look& look : looks) {
    for (size_t gpu = 0; gpu < look.gpus.gpus.size(); ++gpu) places.push_back({&look, gpu});
  }
  return places;
}

// Returns nvidia-smi's term for the path.
const char* word_of(uint32_t ancestor) {
  switch (ancestor) {
    case NVML_TOPOLOGY_INTERNAL:
      return "INT";
    case NVML_TOPOLOGY_SINGLE:
      return "PIX";
    case NVML_TOPOLOGY_MULTIPLE:
      return "PXB";
    case NVML_TOPOLOGY_HOSTBRIDGE:
      return "PHB";
    case NVML_TOPOLOGY_NODE:
      return "NODE";
    case NVML_TOPOLOGY_SYSTEM:
      return "SYS";
    default:
      return "-";
  }
}

bool on_one_machine(const Place& a, const Place& b) {
  const std::string& host = a.look->gpus.host;
  return a.look == b.look || (!host.empty() && host == b.look->gpus.host);
}

bool share_adapter(const Place& a, const Place& b) {
  const std::string& adapter = a.report().adapter;
  return !adapter.empty() && adapter == b.report().adapter && on_one_machine(a, b);
}

const char* way(const Place& from, const Place& to) {
  if (from.look != to.look) return on_one_machine(from, to) ? "HOST" : "NET";
  const std::vector<wire::GpuReport::Path>& paths = from.report().paths;
  if (to.gpu >= paths.size()) return "-";
  const wire::GpuReport::Path& path = paths[to.gpu];
  if (path.p2p_status.size() > NVML_P2P_CAPS_INDEX_NVLINK &&
      path.p2p_status[NVML_P2P_CAPS_INDEX_NVLINK] == NVML_P2P_STATUS_OK) {
    return "NVL";
  }
  return word_of(path.ancestor);
}

std::string cell(const Place& from, const Place& to) {
  if (from.look == to.look && from.gpu == to.gpu) return "X ";
  return fmt::format("{}{}", way(from, to), share_adapter(from, to) ? "*" : " ");
}

std::string adapter_of(const wire::GpuReport::Gpu& gpu) {
  if (gpu.adapter.empty()) return "-";
  return fmt::format("{} {}", gpu.adapter, word_of(gpu.adapter_ancestor));
}

// Returns the staging and the route of a plan: "host over tcp". rcuda-p2p shows the whole plan.
std::string route_of(const std::string& plan) { return plan.substr(0, plan.find(',')); }

// A measurement of copies from the first GPU of one server to that of another.
struct Measured {
  std::string from, to;  // as RCUDA_DEVICES names them
  Status error;
  double latency_us = 0, gbps = 0;
  std::string route;
};

std::vector<Measured> measure_pairs(const std::vector<Look>& looks) {
  std::vector<Measured> pairs;
  for (const Look& from : looks) {
    for (const Look& to : looks) {
      if (&from == &to || from.status.devices.empty() || to.status.devices.empty()) continue;
      Measured& pair = pairs.emplace_back();
      pair.from = device_name(from, from.status.devices.front().ordinal);
      pair.to = device_name(to, to.status.devices.front().ordinal);
      tools::LiveQuery query;
      query.from = pair.from;
      query.to = pair.to;
      query.sizes = {kLatencyBytes, kBandwidthBytes};
      std::vector<tools::LiveCopy> copies;
      pair.error = tools::measure_copies(
          query, [](const std::string&) {},
          [&](const tools::LiveCopy& copy) { copies.push_back(copy); });
      if (!pair.error.ok()) continue;
      pair.latency_us = copies.at(0).measured_us;
      pair.gbps = copies.at(1).gbps();
      pair.route = route_of(copies.at(1).plan);
    }
  }
  return pairs;
}

}  // namespace

std::string matrix_of(const std::vector<Look>& looks) {
  const std::vector<Place> places = places_of(looks);
  size_t width = 0;
  for (const Place& place : places) width = std::max(width, place.name().size());
  std::string text = fmt::format("{:{}}", "", 4 + width);
  for (size_t i = 0; i < places.size(); ++i) text += fmt::format("  {:>4} ", i);
  text += "  NIC";
  for (size_t i = 0; i < places.size(); ++i) {
    text += fmt::format("\n{:>3} {:{}}", i, places[i].name(), width);
    for (const Place& to : places) text += fmt::format("  {:>5}", cell(places[i], to));
    text += "  " + adapter_of(places[i].report());
  }
  return text + "\n" + kLegend;
}

std::string network_of(const std::vector<Look>& looks) {
  std::string text;
  for (const Measured& pair : measure_pairs(looks)) {
    text += fmt::format("  {} to {}: ", pair.from, pair.to);
    text += pair.error.ok() ? fmt::format("{}, {:.2f} GB/s ({})\n",
                                          microseconds_text(pair.latency_us), pair.gbps, pair.route)
                            : pair.error.context() + "\n";
  }
  if (text.empty()) return text;
  return "\nCopies between the first GPUs of each pair of servers: time of 8 bytes, rate of 64 "
         "MiB\n" +
         text;
}

nlohmann::json topology_json(const std::vector<Look>& looks, bool measures) {
  const std::vector<Place> places = places_of(looks);
  nlohmann::json json = {{"gpus", nlohmann::json::array()}};
  for (const Place& from : places) {
    nlohmann::json paths = nlohmann::json::array();
    for (const Place& to : places) {
      const bool same = from.look == to.look && from.gpu == to.gpu;
      paths.push_back(same ? "X" : way(from, to));
    }
    json["gpus"].push_back({{"device", device_name(*from.look, from.report().ordinal)},
                            {"adapter", from.report().adapter},
                            {"paths", std::move(paths)}});
  }
  if (!measures) return json;
  json["copies"] = nlohmann::json::array();
  for (const Measured& pair : measure_pairs(looks)) {
    nlohmann::json copy = {{"from", pair.from}, {"to", pair.to}};
    if (!pair.error.ok()) copy["error"] = pair.error.context();
    if (pair.error.ok()) {
      copy.update({{"latency_us", pair.latency_us},
                   {"gigabytes_per_second", pair.gbps},
                   {"route", pair.route}});
    }
    json["copies"].push_back(std::move(copy));
  }
  return json;
}

}  // namespace rcuda::smi
