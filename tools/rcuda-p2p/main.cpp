// rcuda-p2p: shows the decisions of the peer-to-peer planner and their reasons.
//
//   rcuda-p2p plan --from node1:0 --to node2:0
//       the table of methods for two GPUs of running servers, with predicted and measured times
#include <cstdio>
#include <optional>
#include <string>

#include "client/pool/device_list.h"
#include "common/base/standard_descriptors.h"
#include "common/base/version.h"
#include "common/config/command_line.h"
#include "tools/rcuda-p2p/live_plan.h"

int main(int argc, char** argv) {
  using namespace rcuda;
  const auto check_device = [](const std::string& text) {
    return client::parse_device(text).status();
  };

  open_standard_descriptors();
  config::CommandLine line("rcuda-p2p",
                           "Shows the plans of the peer-to-peer planner and their reasons",
                           version_of("rcuda-p2p"));
  line.require_subcommand(1, 1);
  tools::LiveQuery query;
  for (uint64_t bytes = 4096; bytes <= (256u << 20); bytes *= 4) query.sizes.push_back(bytes);
  config::CommandLine& plan =
      line.subcommand("plan", "The methods and the plan for each copy size between two GPUs");
  plan.option("--from", &query.from, "The source GPU of a running server: host[@port]:gpu")
      .required()
      .check(check_device);
  plan.option("--to", &query.to, "The destination GPU, in the same form")
      .required()
      .check(check_device);
  plan.option("--strategy", &query.strategy, "The strategy, a value of RCUDA_P2P_STRATEGY");
  plan.option("--path", &query.path, "The path, a value of RCUDA_P2P_PATH");
  plan.option("--sizes", &query.sizes, "Copy sizes, as 65536, 64K or 1M")
      .separated_by(',')
      .as_bytes();
  if (const std::optional<int> status = line.parse(argc, argv)) return *status;

  const Status status = tools::print_live_plan(query, stdout);
  if (status.ok()) return 0;
  std::fprintf(stderr, "rcuda-p2p: %s\n", status.context().c_str());
  return 1;
}
