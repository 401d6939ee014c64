// rcuda-p2p: shows what the peer-to-peer planner decides and why.
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
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/base/version.h"
#include "p2p/planner/measurements.h"
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

  CLI::App app("What the peer-to-peer planner does and why");
  app.set_version_flag("--version", version_of("rcuda-p2p"));
  app.require_subcommand(1);
  std::string cache = p2p::default_measurements_path();
  app.add_option("--cache", cache, "Measurements file")->capture_default_str();

  tools::PlanQuery query;
  std::vector<std::string> sizes{"4K", "16K", "64K", "200000", "256K",
                                 "1M", "4M",  "16M", "64M",    "256M"};
  CLI::App* plan = app.add_subcommand("plan", "The plan for each copy size between two GPUs");
  plan->add_option(
          "--from", query.from_gpu,
          "The source GPU: host[@port]:gpu of a running server, or a UUID or its beginning")
      ->required();
  plan->add_option("--to", query.to_gpu, "The destination GPU, likewise")->required();
  plan->add_flag("--same-host", query.same_host, "Both servers run on one host");
  plan->add_option("--nic", query.nic, "RDMA device of the source");
  plan->add_option("--to-host", query.to_host, "Host of the destination");
  plan->add_option("--strategy", query.strategy, "As RCUDA_P2P_STRATEGY");
  plan->add_option("--path", query.path, "As RCUDA_P2P_PATH");
  plan->add_option("--sizes", sizes, "Copy sizes, as 65536, 64K or 1M")->delimiter(',');
  CLI::App* legs = app.add_subcommand("legs", "What has been measured");
  CLI::App* outlook = app.add_subcommand("outlook", "Other links and buses, simulated (Markdown)");
  CLI11_PARSE(app, argc, argv);

  if (*outlook) {
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
  if (*plan && query.from_gpu.find(':') != std::string::npos) {
    const Status status = tools::print_live_plan(
        {query.from_gpu, query.to_gpu, query.strategy, query.path, query.sizes}, stdout);
    return status.ok() ? 0 : fail(status);
  }
  const auto measurements = p2p::Measurements::load(cache);
  if (!measurements) return fail(measurements.status());
  if (*legs) {
    std::fputs(tools::legs_table(*measurements).c_str(), stdout);
    return 0;
  }
  const auto table = tools::plan_table(*measurements, query);
  if (!table) return fail(table.status());
  std::fputs(table->c_str(), stdout);
  return 0;
}
