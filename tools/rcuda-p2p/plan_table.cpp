#include "tools/rcuda-p2p/plan_table.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace rcuda::tools {
namespace {

using p2p::LegKey;
using p2p::Measurements;

constexpr uint64_t kShownBytes[] = {4096, 1u << 20, 64u << 20};

Result<std::string> find_gpu(const Measurements& measurements, const std::string& wanted,
                             const char* option) {
  const std::vector<std::string> gpus = known_gpus(measurements);
  std::vector<std::string> matching;
  for (const std::string& gpu : gpus) {
    if (gpu.starts_with(wanted)) matching.push_back(gpu);
  }
  if (matching.size() == 1) return matching.front();
  std::string list;
  for (const std::string& gpu : matching.empty() ? gpus : matching) list += " " + gpu;
  return Status(
      matching.empty() ? Code::kNotFound : Code::kInvalidArgument,
      std::string(option) + " \"" + wanted + "\" names " +
          (matching.empty() ? "no measured GPU; measured are:" : "several measured GPUs:") + list);
}

// The first leg of a kind whose source matches; used for parts that the query leaves open.
const LegKey* find_leg(const Measurements& measurements, const char* kind, const PlanQuery& query,
                       bool sockets) {
  for (const auto& [key, leg] : measurements.legs()) {
    const bool without_nic = transport::find_medium(key.nic) != nullptr;
    if (key.kind != kind || without_nic != sockets) continue;
    if (!sockets && !query.nic.empty() && key.nic != query.nic) continue;
    if (!query.to_host.empty() && key.peer != query.to_host) continue;
    return &key;
  }
  return nullptr;
}

std::string row(const p2p::Plan& plan, uint64_t bytes, double paper_us) {
  char text[160];
  const std::string chunks =
      std::to_string(plan.chunking.depth) + " x " + p2p::bytes_text(plan.chunking.chunk_bytes);
  std::snprintf(text, sizeof text, "%9s  %-4s %-5s %-13s %11.1f %8.2f %11.1f  ",
                p2p::bytes_text(bytes).c_str(), p2p::to_string(plan.strategy),
                p2p::to_string(plan.route), chunks.c_str(), plan.predicted_us,
                plan.predicted_us > 0 ? static_cast<double>(bytes) / plan.predicted_us * 1e-3 : 0.0,
                paper_us);
  return text + plan.reason + "\n";
}

}  // namespace

std::vector<std::string> known_gpus(const Measurements& measurements) {
  std::vector<std::string> gpus;
  for (const auto& [key, leg] : measurements.legs()) {
    if (!key.gpu.empty() && std::find(gpus.begin(), gpus.end(), key.gpu) == gpus.end()) {
      gpus.push_back(key.gpu);
    }
  }
  return gpus;
}

Result<std::string> plan_table(const Measurements& measurements, const PlanQuery& query) {
  const auto from = find_gpu(measurements, query.from_gpu, "--from");
  if (!from) return from.status();
  const auto to = find_gpu(measurements, query.to_gpu, "--to");
  if (!to) return to.status();
  auto options = p2p::parse_planner_options(query.strategy, query.path);
  if (!options) return options.status();

  p2p::PairKey pair{*from, *to, "", query.to_host, query.nic, ""};
  const LegKey* sockets = find_leg(measurements, "wire", query, true);
  const LegKey* adapters = find_leg(measurements, "wire", query, false);
  if (sockets) pair.medium = sockets->nic;
  if (const LegKey* wire = adapters ? adapters : sockets) {
    pair.nic = wire->nic;
    pair.destination_host = wire->peer;
  }
  p2p::PairModel model = p2p::pair_model(measurements, pair);
  if (model.copy_out.empty() || model.copy_in.empty()) {
    return Status(Code::kNotFound, "copies out of " + *from + " and into " + *to +
                                       " have not both been measured: run a session with these "
                                       "GPUs once");
  }
  p2p::Capabilities can;
  can.shm = query.same_host;
  can.tcp = !model.wire_tcp.empty();
  can.verbs = !model.wire_verbs.empty();
  can.gpudirect = can.verbs && !model.gpudirect.empty();
  can.ipc = query.same_host && !model.ipc.empty();
  if (!can.shm && !can.tcp && !can.verbs) {
    return Status(Code::kNotFound,
                  "no wire between these GPUs has been measured; --same-host plans for two servers "
                  "of one host");
  }

  p2p::Planner planner(*options, can, model);
  p2p::PlannerOptions paper_options;
  paper_options.policy = p2p::Policy::kPaper;
  p2p::Planner paper(paper_options, can, model);
  std::string out =
      "from " + *from + " to " + *to + "\n\n" +
      "     size  how  over  buffers         predicted     GB/s   published  reason\n" +
      "                                             us                 us\n";
  for (const uint64_t bytes : query.sizes) {
    const auto plan = planner.plan(bytes, true);
    if (!plan) return plan.status();
    const auto published = paper.plan(bytes, true);
    out += row(*plan, bytes, published ? published->predicted_us : 0.0);
  }
  return out;
}

std::string legs_table(const Measurements& measurements) {
  std::string out =
      "leg          gpu / nic / peer                          4 KB us   1 MB us   64 MB us   "
      "GB/s\n";
  for (const auto& [key, leg] : measurements.legs()) {
    std::string where = key.gpu;
    for (const std::string& part : {key.nic, key.peer}) {
      if (!part.empty()) where += (where.empty() ? "" : " / ") + part;
    }
    char text[200];
    std::snprintf(text, sizeof text, "%-12s %-40s %9.1f %9.1f %10.1f %6.2f\n", key.kind.c_str(),
                  where.c_str(), leg.time_us(kShownBytes[0]), leg.time_us(kShownBytes[1]),
                  leg.time_us(kShownBytes[2]), leg.peak_gbps());
    out += text;
  }
  return out;
}

}  // namespace rcuda::tools
