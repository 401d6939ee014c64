// rcuda-p2p: shows the decisions of the peer-to-peer planner and their reasons.
//
//   rcuda-p2p plan --from node1:0 --to node2:0
//       plans for two GPUs of running servers, and the measured times of copies
//   rcuda-p2p plan --from GPU-1234 --to GPU-5678 [--same-host]
//       the same from a measurements file, without copies
//   rcuda-p2p legs
//       the measured legs
//   rcuda-p2p outlook
//       other links and buses, simulated
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "common/base/standard_descriptors.h"
#include "common/base/version.h"
#include "common/config/command_line.h"
#include "p2p/plan/measurements.h"
#include "tools/rcuda-p2p/live_plan.h"
#include "tools/rcuda-p2p/outlook.h"
#include "tools/rcuda-p2p/plan_table.h"

namespace {

int fail(const rcuda::Status& status) {
  std::fprintf(stderr, "rcuda-p2p: %s\n", status.context().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace rcuda;

  open_standard_descriptors();
  config::CommandLine line("", "Shows the plans of the peer-to-peer planner and their reasons",
                           version_of("rcuda-p2p"));
  line.require_subcommand(1, 1);
  std::string cache = p2p::default_measurements_path();
  line.option("--cache", &cache, "Measurements file").show_default();

  tools::PlanQuery query;
  std::vector<std::string> sizes{"4K", "16K", "64K", "200000", "256K",
                                 "1M", "4M",  "16M", "64M",    "256M"};
  config::CommandLine& plan =
      line.subcommand("plan", "The plan for each copy size between two GPUs");
  plan.option("--from", &query.from_gpu,
              "The source GPU: host[@port]:gpu of a running server, or a UUID or its beginning")
      .required();
  plan.option("--to", &query.to_gpu, "The destination GPU, in the same form").required();
  plan.flag("--same-host", &query.same_host, "Both servers run on one host");
  plan.option("--nic", &query.nic, "RDMA device of the source");
  plan.option("--to-host", &query.to_host, "Host of the destination");
  plan.option("--strategy", &query.strategy, "As RCUDA_P2P_STRATEGY");
  plan.option("--path", &query.path, "As RCUDA_P2P_PATH");
  plan.option("--sizes", &sizes, "Copy sizes, as 65536, 64K or 1M").separated_by(',');
  config::CommandLine& legs = line.subcommand("legs", "The measurements");
  config::CommandLine& outlook =
      line.subcommand("outlook", "Other links and buses, simulated (Markdown)");
  if (const std::optional<int> status = line.parse(argc, argv)) return *status;

  if (outlook.is_chosen()) {
    std::fputs(tools::outlook_markdown().c_str(), stdout);
    return 0;
  }
  for (const std::string& size : sizes) {
    const auto bytes = p2p::parse_bytes(size);
    if (!bytes) {
      return fail({Code::kInvalidArgument, "--sizes: \"" + size + "\" is not a size"});
    }
    query.sizes.push_back(*bytes);
  }
  if (plan.is_chosen() && query.from_gpu.find(':') != std::string::npos) {
    const Status status = tools::print_live_plan(
        {query.from_gpu, query.to_gpu, query.strategy, query.path, query.sizes}, stdout);
    return status.ok() ? 0 : fail(status);
  }
  const auto measurements = p2p::Measurements::load(cache);
  if (!measurements) return fail(measurements.status());
  if (legs.is_chosen()) {
    std::fputs(tools::legs_table(*measurements).c_str(), stdout);
    return 0;
  }
  const auto table = tools::plan_table(*measurements, query);
  if (!table) return fail(table.status());
  std::fputs(table->c_str(), stdout);
  return 0;
}
