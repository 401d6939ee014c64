// rcuda-doctor: checks whether this node is ready for RDMA and GPUDirect, or whether a server can
// be used from here, and prints each finding with its remedy. Changes nothing. Exits with 1 if
// something is broken.
//
//   rcuda-doctor                  this node's adapters and GPUs
//   rcuda-doctor node1            a server: name, port, TLS, token, user, build, clock, medium
//   rcuda-doctor --listen         serves probe transfers of other nodes
//   rcuda-doctor --probe node1    as without arguments; also moves bytes to node1 and back
#include <cstdio>
#include <optional>
#include <string>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/standard_descriptors.h"
#include "common/base/unique_fd.h"
#include "common/base/version.h"
#include "common/config/command_line.h"
#include "common/transport/media.h"
#include "common/transport/verbs/locked_memory.h"
#include "tools/base/server_query.h"
#include "tools/rcuda-doctor/checks.h"
#include "tools/rcuda-doctor/probe.h"
#include "tools/rcuda-doctor/server_checks.h"

namespace {

using namespace rcuda;
using doctor::Finding;
using doctor::Findings;
using doctor::Verdict;

bool print(const char* title, const Findings& findings) {
  constexpr const char* kMarks[] = {"ok     ", "note   ", "WARNING", "BROKEN "};
  bool broken = false;
  if (!findings.empty()) std::printf("%s\n", title);
  for (const Finding& finding : findings) {
    std::printf("  %s  %s\n", kMarks[static_cast<int>(finding.verdict)], finding.what.c_str());
    if (!finding.remedy.empty()) std::printf("           -> %s\n", finding.remedy.c_str());
    broken = broken || finding.verdict == Verdict::kBad;
  }
  return broken;
}

Findings check_limits() {
  return doctor::check_memlock(transport::locked_memory_limit(), !doctor::usable_gids("/").empty());
}

// For each IPv4 address of RoCE v2 devices: whether rcuda's verbs transport would accept it.
Findings check_transport() {
  Findings findings;
  for (const doctor::Gid& gid : doctor::usable_gids("/")) {
    if (gid.ipv4.empty() || gid.type != "RoCE v2") continue;
    const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, gid.ipv4.c_str(), &address.sin_addr);
    if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) continue;
    const std::string what = "sessions over " + gid.ipv4 + " (" + gid.device + "): ";
    for (const transport::Medium& medium : transport::media()) {
      if (!medium.traits.has_adapter) continue;
      const Status status = medium.usable(socket.get());
      if (status.ok()) {
        findings.push_back({Verdict::kGood, what + medium.name(), ""});
        continue;
      }
      findings.push_back({Verdict::kBad, what + status.context(),
                          "install libibverbs1, librdmacm1 and ibverbs-providers, and "
                          "librcuda-verbs.so in lib/rcuda next to librcuda.so"});
    }
  }
  if (findings.empty()) {
    findings.push_back({Verdict::kNote, "no RDMA device has an address: sessions use shm and tcp",
                        "see the section \"RDMA devices\" above"});
  }
  return findings;
}

}  // namespace

int main(int argc, char** argv) {
  rcuda::open_standard_descriptors();
  config::CommandLine line(
      "rcuda-doctor",
      "Checks whether a server can be used from here, or whether this node is ready for "
      "RDMA and GPUDirect",
      version_of("rcuda-doctor"));
  bool listen = false;
  std::string address;
  std::string target, server;
  uint16_t port = doctor::kProbePort;
  line.option(
          "server", &server,
          "Check this server, host or host:port (default port: 8308); without it, check this node")
      .type_name("")
      .check(tools::check_server);
  line.flag("--listen", &listen, "Serve probe transfers of other nodes until interrupted");
  line.option("--address", &address, "With --listen: the address to listen on (default: all)");
  line.option("--probe", &target,
              "Copy bytes to and from this host, where rcuda-doctor --listen runs");
  line.option("--port", &port, "Port of the probe transfers").show_default();
  if (const std::optional<int> status = line.parse(argc, argv)) return *status;
  set_log_name("rcuda-doctor");

  if (listen) {
    const Status status = doctor::serve_probes(address, port);
    std::fprintf(stderr, "rcuda-doctor: %s\n", status.message().c_str());
    return 1;
  }
  if (!server.empty()) {
    const tools::Server named = tools::parse_server(server).value();
    const std::string title = "Server " + named.text();
    return print(title.c_str(), doctor::check_server(named.host, named.port)) ? 1 : 0;
  }
  bool broken = print("RDMA devices", doctor::check_devices("/"));
  broken |= print("Limits", check_limits());
  broken |= print("Transport", check_transport());
  broken |= print("GPUDirect", doctor::check_gpudirect("/"));
  broken |= print("PCI", doctor::check_pci("/"));
  broken |= print("Huge pages", doctor::check_huge_pages("/"));
  if (target.empty()) {
    print("Probe", {{Verdict::kNote, "no probe transfer was requested",
                     "rcuda-doctor --listen on a server, rcuda-doctor --probe SERVER here"}});
  } else {
    broken |= print("Probe", doctor::probe(target, port));
  }
  return broken ? 1 : 0;
}
