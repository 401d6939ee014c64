// rcuda-smi: the devices and sessions of rcuda servers.
//
//   rcuda-smi                     this machine's server
//   rcuda-smi node1 node2:9000    other servers
//   rcuda-smi --json node1        for programs
//   rcuda-smi top node1 node2     their activity, every two seconds
//   rcuda-smi topo node1 node2    the paths between their GPUs, measured
//   rcuda-smi end node1 4711      ends the session of worker 4711
//   rcuda-smi drain node1         no new sessions; waits until the server has stopped
//   rcuda-smi resume node1        cancels the drain
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "common/base/standard_descriptors.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/config/command_line.h"
#include "common/messages/control_messages.h"
#include "common/reach/connect.h"
#include "tools/base/server_query.h"
#include "tools/rcuda-smi/look.h"
#include "tools/rcuda-smi/topology.h"

namespace rcuda {
namespace {

using smi::Look;
using tools::Server;
using wire::ControlOperation;

constexpr auto kDrainInterval = std::chrono::seconds(1);
constexpr int kMostFailures = 20;  // of queries in a row, during a drain

int fail(const Status& status) {
  std::fprintf(stderr, "rcuda-smi: %s\n", status.context().c_str());
  return 1;
}

// Makes a malformed server name an error of the command line.
Status check_server(const std::string& name) { return tools::parse_server(name).status(); }

// `names`: accepted by check_server().
std::vector<Server> servers_of(const std::vector<std::string>& names) {
  std::vector<Server> servers;
  for (const std::string& name : names) servers.push_back(tools::parse_server(name).value());
  return servers;
}

int show(const std::vector<std::string>& names, bool as_json) {
  const std::vector<Look> looks = smi::look(servers_of(names));
  nlohmann::json json = nlohmann::json::array();
  int failed = 0;
  for (const Look& look : looks) {
    if (as_json) json.push_back(smi::json_of(look));
    if (!look.error.ok()) {
      failed = fail(look.error);
    } else if (!as_json) {
      std::fputs(smi::text_of(look).c_str(), stdout);
      // The sessions have been printed; only the GPUs are missing.
      if (!look.gpus_error.ok()) fail(look.gpus_error);
    }
  }
  // Texts come from clients and need not be UTF-8.
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  if (as_json) std::printf("%s\n", json.dump(2, ' ', false, kReplace).c_str());
  return failed;
}

// `rounds`: the number of rounds; 0: until a signal ends the program.
int top(const std::vector<std::string>& names, double seconds, int rounds) {
  const std::vector<Server> servers = servers_of(names);
  const bool screen = ::isatty(STDOUT_FILENO);
  std::vector<Look> before = smi::look(servers);
  for (int round = 0; rounds == 0 || round < rounds; ++round) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    std::vector<Look> now = smi::look(servers);
    // Moves the cursor home, then clears the screen: this does not flicker.
    std::printf("%s%s%s", screen ? "\x1b[H\x1b[2J" : "", smi::top_of(before, now).c_str(),
                screen ? "" : "\n");
    std::fflush(stdout);
    before = std::move(now);
  }
  return 0;
}

int topology(const std::vector<std::string>& names, bool measure) {
  const std::vector<Look> looks = smi::look(servers_of(names));
  for (const Look& look : looks) {
    if (!look.error.ok()) return fail(look.error);
    if (!look.gpus_error.ok()) return fail(look.gpus_error);
  }
  std::fputs(smi::matrix_of(looks).c_str(), stdout);
  if (measure) std::fputs(smi::network_of(looks).c_str(), stdout);
  return 0;
}

Result<wire::ControlAnswer> control(const Server& server, const wire::ControlRequest& request) {
  return tools::ask<wire::ControlAnswer>(server, wire::MessageType::kControlRequest,
                                         wire::encode(request), wire::MessageType::kControlAnswer);
}

// Sends a request that is done when the server has answered.
int send_request(const std::string& name, const wire::ControlRequest& request) {
  const auto answer = control(servers_of({name}).front(), request);
  return answer.ok() ? 0 : fail(answer.status());
}

// Whether nothing listens where the server did. Any other failure of a query says less: the server
// may be too busy to answer, and its sessions go on.
bool has_stopped(const Server& server) {
  constexpr auto kPatience = std::chrono::seconds(2);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const Result<UniqueFd> socket = wire::connect_tcp(server.host, server.port, deadline);
  return !socket.ok() && socket.status().context().find(std::strerror(ECONNREFUSED)) !=
                             std::string::npos;
}

// `wait`: returns only after the server has stopped.
int drain(const std::string& name, bool wait) {
  const Server server = servers_of({name}).front();
  Result<wire::ControlAnswer> answer = control(server, {ControlOperation::kDrain, 0});
  if (!answer.ok()) return fail(answer.status());
  uint32_t sessions = answer->sessions;
  int failures = 0;  // in a row
  for (;;) {
    std::printf("%s: draining, %u session%s left\n", server.text().c_str(), sessions,
                sessions == 1 ? "" : "s");
    std::fflush(stdout);
    if (!wait) return 0;
    for (const uint32_t printed = sessions; sessions == printed;) {
      std::this_thread::sleep_for(kDrainInterval);
      answer = control(server, {ControlOperation::kAsk, 0});
      if (!answer.ok() && has_stopped(server)) {
        std::printf("%s: stopped\n", server.text().c_str());
        return 0;
      }
      if (!answer.ok()) {
        if (++failures == kMostFailures) return fail(answer.status());
        continue;
      }
      failures = 0;
      if (!answer->draining) {
        return fail(Status(Code::kUnavailable, server.text() + " is no longer draining: an operator "
                                                               "ran rcuda-smi resume"));
      }
      sessions = answer->sessions;
    }
  }
}

int start(int argc, char** argv) {
  open_standard_descriptors();
  config::CommandLine line("rcuda-smi", "Shows the devices and sessions of rcuda servers.",
                           version_of("rcuda-smi"));
  std::vector<std::string> names = {"localhost"};
  std::string name;
  constexpr const char* kServer = "host or host:port, 8308 unless given";
  bool as_json = false, no_wait = false, matrix = false, no_measure = false;
  double seconds = 2;
  int rounds = 0;
  uint32_t worker = 0;
  const auto add_servers = [&](config::CommandLine& command) {
    command.option("server", &names, kServer).type_name("").check(check_server);
  };
  const auto add_server = [&](config::CommandLine& command) {
    command.option("server", &name, kServer).required().type_name("").check(check_server);
  };
  add_servers(line);
  line.flag("--json", &as_json, "for programs: a list with an object for each server");
  line.require_subcommand(0, 1);
  config::CommandLine& top_command = line.subcommand("top", "show session activity repeatedly");
  add_servers(top_command);
  top_command.option("--every", &seconds, "seconds between two rounds")
      .within(0.1, 3600.0)
      .show_default();
  top_command.option("--rounds", &rounds, "end after this many rounds; 0: never").show_default();
  config::CommandLine& topology_command = line.subcommand(
      "topo", "the paths between GPUs; measures copies between servers, as rcuda-p2p does");
  add_servers(topology_command);
  topology_command.flag("-m,--matrix", &matrix,
                        "for compatibility with nvidia-smi; the matrix is always shown");
  topology_command.flag("--no-measure", &no_measure, "only the matrix; copies nothing");
  config::CommandLine& end_command =
      line.subcommand("end", "ends a session; for its user and for operators");
  add_server(end_command);
  end_command.option("worker", &worker, "the session's worker, as rcuda-smi lists it")
      .required()
      .type_name("");
  config::CommandLine& drain_command = line.subcommand(
      "drain", "for operators: no new sessions; the server stops when the last session has ended");
  add_server(drain_command);
  drain_command.flag("--no-wait", &no_wait, "do not wait until the server has stopped");
  config::CommandLine& resume_command = line.subcommand("resume", "for operators: ends a drain");
  add_server(resume_command);
  if (const std::optional<int> status = line.parse(argc, argv)) return *status;
  if (top_command.is_chosen()) return top(names, seconds, rounds);
  if (topology_command.is_chosen()) return topology(names, !no_measure);
  if (end_command.is_chosen()) return send_request(name, {ControlOperation::kEnd, worker});
  if (drain_command.is_chosen()) return drain(name, !no_wait);
  if (resume_command.is_chosen()) return send_request(name, {ControlOperation::kResume, 0});
  return show(names, as_json);
}

}  // namespace
}  // namespace rcuda

int main(int argc, char** argv) { return rcuda::start(argc, argv); }
