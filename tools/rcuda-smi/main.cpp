// rcuda-smi: the devices and sessions of rcuda servers.
//
//   rcuda-smi                     the servers of RCUDA_DEVICES, or this machine's
//   rcuda-smi node1 node2:9000    these servers
//   rcuda-smi -L node1            a line for each GPU
//   rcuda-smi --json node1        JSON, for programs; the commands below have --json, too
//   rcuda-smi top node1 node2     their activity, every two seconds
//   rcuda-smi topo node1 node2    the paths between their GPUs, measured
//   rcuda-smi end node1 4711      ends the session of worker 4711
//   rcuda-smi park node1 4711     moves the GPU memory of this session to the host
//   rcuda-smi wake node1 4711     moves this memory back
//   rcuda-smi move node1 4711     parks this session, and lets it wake on another GPU
//   rcuda-smi drain node1         no new sessions; waits until the server has stopped
//   rcuda-smi resume node1        cancels the drain
//   rcuda-smi reload node1        lets the server read its settings again; without a name, the
//                                 servers of RCUDA_DEVICES or this machine's
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <netdb.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "common/base/list_text.h"
#include "common/base/nearest.h"
#include "common/base/printable.h"
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
constexpr auto kMovePause = std::chrono::seconds(10);
// A small session is parked within milliseconds, a large one takes many seconds.
constexpr std::chrono::duration<double> kShortestParkPause(0.001), kLongestParkPause(0.1);
constexpr int kMostFailures = 20;  // of queries in a row, during a drain

int fail(const Status& status, int exit_status = 1) {
  std::fprintf(stderr, "rcuda-smi: %s\n", status.context().c_str());
  return exit_status;
}

constexpr const char* kServer = "host or host:port, 8308 unless given";
constexpr const char* kServers =
    "host or host:port, 8308 unless given (default: the servers of RCUDA_DEVICES, or localhost)";

// `name`: accepted by tools::check_server().
Server server_of(const std::string& name) { return tools::parse_server(name).value(); }

// Returns an error for a word that is probably a misspelt command: the word does not resolve to an
// address, and is the only word or is similar to a command. Any other word without an address
// counts as a host, whose error show() prints.
Status check_hosts(const std::vector<std::string>& words,
                   const std::vector<std::string>& commands) {
  for (const std::string& word : words) {
    const bool is_word = word.find_first_of(":@.[") == word.npos;
    addrinfo* addresses = nullptr;
    const int error = is_word ? ::getaddrinfo(word.c_str(), nullptr, nullptr, &addresses) : 0;
    if (addresses) ::freeaddrinfo(addresses);
    if (error == 0) continue;
    std::string remedy = did_you_mean(word, commands);
    const bool is_unknown = error == EAI_NONAME || error == EAI_NODATA;
    if (remedy.empty() && (words.size() > 1 || !is_unknown)) continue;
    if (remedy.empty()) {
      for (const std::string& command : commands) append_item(&remedy, command);
      remedy = "; the commands are " + remedy + "; without one, rcuda-smi shows servers";
    }
    return Status(Code::kInvalidArgument, "\"" + word + "\" is neither a command nor a host (" +
                                              ::gai_strerror(error) + ")" + remedy);
  }
  return {};
}

void print_json(const nlohmann::json& json, int indent = 2) {
  std::fputs(smi::json_text_of(json, indent).c_str(), stdout);
  std::fflush(stdout);
}

nlohmann::json json_of(const std::vector<Look>& looks) {
  nlohmann::json json = nlohmann::json::array();
  for (const Look& look : looks) json.push_back(smi::json_of(look));
  return json;
}

// How a view prints its servers.
enum class Form { kText, kList, kJson };

int show(const std::vector<Server>& servers, Form form) {
  const std::vector<Look> looks = smi::look(servers);
  int failed = 0;
  if (form == Form::kJson) print_json(json_of(looks));
  for (const Look& look : looks) {
    if (!look.error.ok()) {
      failed = fail(look.error);
    } else if (form != Form::kJson) {
      std::fputs(form == Form::kList ? smi::list_of(look).c_str() : smi::text_of(look).c_str(),
                 stdout);
      // The sessions have been printed; only the GPUs are missing.
      if (!look.gpus_error.ok()) fail(look.gpus_error);
    }
  }
  return failed;
}

// `rounds`: the number of rounds; 0: until a signal ends the program.
int top(const std::vector<Server>& servers, double seconds, int rounds, bool as_json) {
  const bool screen = ::isatty(STDOUT_FILENO);
  std::vector<Look> before = smi::look(servers);
  for (int round = 0; rounds == 0 || round < rounds; ++round) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    std::vector<Look> now = smi::look(servers);
    if (as_json) {
      print_json(json_of(now), -1);
      continue;
    }
    // Moves the cursor home, then clears the screen: this does not flicker.
    std::printf("%s%s%s", screen ? "\x1b[H\x1b[2J" : "", smi::top_of(before, now).c_str(),
                screen ? "" : "\n");
    std::fflush(stdout);
    before = std::move(now);
  }
  return 0;
}

int topology(const std::vector<Server>& servers, bool measure, bool as_json) {
  const std::vector<Look> looks = smi::look(servers);
  for (const Look& look : looks) {
    if (!look.error.ok()) return fail(look.error);
    if (!look.gpus_error.ok()) return fail(look.gpus_error);
  }
  if (as_json) {
    print_json(smi::topology_json(looks, measure));
    return 0;
  }
  std::fputs(smi::matrix_of(looks).c_str(), stdout);
  if (measure) std::fputs(smi::network_of(looks).c_str(), stdout);
  return 0;
}

Result<wire::ControlAnswer> control(const Server& server, const wire::ControlRequest& request) {
  return tools::ask<wire::ControlAnswer>(server, wire::MessageType::kControlRequest,
                                         wire::encode(request), wire::MessageType::kControlAnswer);
}

void print_answer(const Server& server, const wire::ControlAnswer& answer) {
  nlohmann::json object = {
      {"server", server.text()}, {"sessions", answer.sessions}, {"draining", answer.draining}};
  if (!answer.text.empty()) object["text"] = answer.text;
  print_json(object, -1);
}

// Sends a request that is done when the server has answered. `names_server`: prints the server's
// name before the answer.
int send_request(const Server& server, const wire::ControlRequest& request, bool as_json,
                 bool names_server = false) {
  const auto answer = control(server, request);
  if (!answer.ok()) return fail(answer.status());
  if (as_json) print_answer(server, *answer);
  if (!as_json && !answer->text.empty()) {
    std::printf("%s%s\n", names_server ? (server.text() + ": ").c_str() : "",
                printable(answer->text).c_str());
  }
  return 0;
}

int reload(const std::vector<Server>& servers, bool as_json) {
  int failed = 0;
  for (const Server& server : servers) {
    failed |= send_request(server, {ControlOperation::kReload, 0}, as_json, servers.size() > 1);
  }
  return failed;
}

// Whether nothing listens on the server's port any more. Other failures do not show that the server
// has stopped: it may be too busy to answer while its sessions go on.
bool has_stopped(const Server& server) {
  constexpr auto kPatience = std::chrono::seconds(2);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const Result<UniqueFd> socket = wire::connect_tcp(server.host, server.port, deadline);
  return !socket.ok() &&
         socket.status().context().find(std::strerror(ECONNREFUSED)) != std::string::npos;
}

// Drains the server. With `wait`, returns only after the server has stopped.
int drain(const std::string& name, bool wait, bool as_json) {
  const Server server = server_of(name);
  Result<wire::ControlAnswer> answer = control(server, {ControlOperation::kDrain, 0});
  if (!answer.ok()) return fail(answer.status());
  uint32_t sessions = answer->sessions;
  int failures = 0;  // in a row
  for (;;) {
    if (as_json) {
      print_answer(server, *answer);
    } else {
      std::printf("%s: draining, %u session%s left\n", server.text().c_str(), sessions,
                  sessions == 1 ? "" : "s");
      std::fflush(stdout);
    }
    if (!wait) return 0;
    for (const uint32_t printed = sessions; sessions == printed;) {
      std::this_thread::sleep_for(kDrainInterval);
      answer = control(server, {ControlOperation::kAsk, 0});
      if (!answer.ok() && has_stopped(server)) {
        if (as_json) print_json({{"server", server.text()}, {"stopped", true}}, -1);
        if (!as_json) std::printf("%s: stopped\n", server.text().c_str());
        return 0;
      }
      if (!answer.ok()) {
        if (++failures == kMostFailures) return fail(answer.status());
        continue;
      }
      failures = 0;
      if (!answer->draining) {
        return fail(Status(Code::kUnavailable, server.text() +
                                                   " is no longer draining: an operator "
                                                   "ran rcuda-smi resume"));
      }
      sessions = answer->sessions;
    }
  }
}

Result<wire::ServerStatus::Session> session_of(const Server& server, uint32_t worker) {
  const Look look = smi::look({server}).front();
  RCUDA_RETURN_IF_ERROR(look.error);
  for (const wire::ServerStatus::Session& session : look.status.sessions) {
    if (session.worker_pid == worker) return session;
  }
  return Status(Code::kNotFound, "the session of worker " + std::to_string(worker) +
                                     " has ended: see the server's log");
}

// Parks or wakes a session, and waits until the session is parked or awake, or the server refuses.
int park_or_wake(const std::string& name, bool parks, uint32_t worker, bool as_json) {
  const Server server = server_of(name);
  const auto answer =
      control(server, {parks ? ControlOperation::kPark : ControlOperation::kWake, worker});
  if (!answer.ok()) return fail(answer.status());
  const auto begin = std::chrono::steady_clock::now();
  for (bool is_over = false;;) {
    const auto session = session_of(server, worker);
    if (!session.ok()) return fail(session.status());
    is_over = parks ? session->park != "parking" : session->park.empty();
    if (is_over && parks && !session->park_refused.empty()) {
      return fail(Status(Code::kUnavailable, "the session of worker " + std::to_string(worker) +
                                                 " is not parked: " + session->park_refused));
    }
    if (is_over && as_json) {
      print_json({{"server", server.text()},
                  {"worker", worker},
                  {"park", session->park},
                  {"parked_bytes", session->parked_bytes}},
                 -1);
    }
    if (is_over && !as_json && parks) std::printf("%s\n", smi::park_text(*session).c_str());
    if (is_over) return 0;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    std::this_thread::sleep_for(std::clamp(elapsed / 16, kShortestParkPause, kLongestParkPause));
  }
}

// Parks the session if it is active, then lets it wake on another GPU.
int move(const std::string& name, uint32_t worker, int from, int to, bool as_json) {
  const Server server = server_of(name);
  const auto session = session_of(server, worker);
  if (!session.ok()) return fail(session.status());
  if (session->park.empty()) {
    if (const int failed = park_or_wake(name, true, worker, as_json)) return failed;
  }
  wire::ControlRequest request{ControlOperation::kMove, worker};
  if (from >= 0) request.from = static_cast<uint32_t>(from);
  if (to >= 0) request.to = static_cast<uint32_t>(to);
  return send_request(server, request, as_json);
}

// Moves the sessions of a GPU to other GPUs. A session that cannot be parked does not move. With
// `wait`, this function retries until the GPU has no session. Without `wait`, it tries once.
int drain_gpu(const std::string& name, int gpu, bool wait, bool as_json) {
  const Server server = server_of(name);
  wire::ControlRequest request{ControlOperation::kDrain, 0};
  request.from = static_cast<uint32_t>(gpu);
  if (const auto answer = control(server, request); !answer.ok()) return fail(answer.status());
  for (;;) {
    const Look look = smi::look({server}).front();
    if (!look.error.ok()) return fail(look.error);
    int left = 0;
    for (const wire::ServerStatus::Session& session : look.status.sessions) {
      const bool has = std::ranges::find(session.devices, *request.from) != session.devices.end();
      if (has && move(name, session.worker_pid, gpu, -1, as_json) != 0) ++left;
    }
    if (left == 0 || !wait) return left != 0;
    std::this_thread::sleep_for(kMovePause);
  }
}

struct Arguments {
  std::vector<std::string> names;  // of servers
  std::string name;                // of the only server of a command
  bool list = false, as_json = false, no_wait = false, matrix = false, no_measure = false;
  double seconds = 2;
  int rounds = 0;
  uint32_t worker = 0;
  int from = -1, to = -1, gpu = -1;  // numbers of GPUs; -1: not given
};

// The subcommands of rcuda-smi. Each has the option --json.
struct Commands {
  config::CommandLine &top, &topology, &end, &park, &wake, &move, &drain, &resume, &reload;
};

Commands add_commands(config::CommandLine& line, Arguments* to) {
  line.require_subcommand(0, 1);
  Commands commands{
      line.subcommand("top", "show session activity repeatedly"),
      line.subcommand("topo",
                      "the paths between GPUs; measures copies between servers, as rcuda-p2p does"),
      line.subcommand("end", "ends a session; for its user and for operators"),
      line.subcommand(
          "park",
          "moves the GPU memory of an idle session to the host, until the session needs "
          "the GPU again; for its user and for operators"),
      line.subcommand("wake",
                      "moves the memory of a parked session back; for its user and for operators"),
      line.subcommand(
          "move", "for operators: parks a session and lets it wake on another GPU of its server"),
      line.subcommand("drain",
                      "for operators: no new sessions; the server stops when the last session has "
                      "ended"),
      line.subcommand("resume", "for operators: ends a drain"),
      line.subcommand("reload", "for operators: the server reads its settings again")};
  for (config::CommandLine* command : {&commands.top, &commands.topology, &commands.reload}) {
    command->option("server", &to->names, kServers).type_name("").check(tools::check_server);
  }
  // These commands change one server, so its name has no default.
  for (config::CommandLine* command : {&commands.end, &commands.park, &commands.wake,
                                       &commands.move, &commands.drain, &commands.resume}) {
    command->option("server", &to->name, kServer)
        .required()
        .type_name("")
        .check(tools::check_server);
  }
  commands.top.option("--every", &to->seconds, "time between two rounds, such as 2s or 500ms")
      .as_seconds(std::chrono::milliseconds(100), std::chrono::hours(1))
      .show_default();
  commands.top.option("--rounds", &to->rounds, "end after this many rounds; 0: never")
      .show_default();
  commands.topology.flag("-m,--matrix", &to->matrix,
                         "for compatibility with nvidia-smi; the matrix is always shown");
  commands.topology.flag("--no-measure", &to->no_measure,
                         "show only the matrix, without measuring copies");
  for (config::CommandLine* command :
       {&commands.end, &commands.park, &commands.wake, &commands.move}) {
    command->option("worker", &to->worker, "the session's worker, as rcuda-smi lists it")
        .required()
        .type_name("");
  }
  commands.move.option("--to", &to->to,
                       "the GPU on which the session wakes, as the server numbers it (default: the "
                       "server chooses)");
  commands.move.option("--from", &to->from, "the GPU that the session leaves, if it has several");
  commands.drain.flag("--no-wait", &to->no_wait, "do not wait until the server has stopped");
  commands.drain.option("--gpu", &to->gpu,
                        "drain this GPU only: its sessions are parked and move to other GPUs");
  commands.top.flag("--json", &to->as_json,
                    "print a line for each round, with the list of rcuda-smi --json");
  for (config::CommandLine* command :
       {&commands.topology, &commands.end, &commands.park, &commands.wake, &commands.move,
        &commands.drain, &commands.resume, &commands.reload}) {
    command->flag("--json", &to->as_json, "print JSON");
  }
  return commands;
}

int start(int argc, char** argv) {
  open_standard_descriptors();
  config::CommandLine line("rcuda-smi", "Shows the devices and sessions of rcuda servers.",
                           version_of("rcuda-smi"));
  Arguments arguments;
  line.option("server", &arguments.names, kServers).type_name("").check(tools::check_server);
  line.flag("-L,--list-gpus", &arguments.list, "a line for each GPU, with its UUID");
  line.flag("--json", &arguments.as_json, "a list with an object for each server");
  const Commands commands = add_commands(line, &arguments);
  if (const std::optional<int> status = line.parse(argc, argv)) return *status;
  const bool as_json = arguments.as_json;
  const std::string& name = arguments.name;
  if (commands.end.is_chosen()) {
    return send_request(server_of(name), {ControlOperation::kEnd, arguments.worker}, as_json);
  }
  const bool parks = commands.park.is_chosen();
  if (parks || commands.wake.is_chosen()) {
    return park_or_wake(name, parks, arguments.worker, as_json);
  }
  if (commands.move.is_chosen()) {
    return move(name, arguments.worker, arguments.from, arguments.to, as_json);
  }
  if (commands.drain.is_chosen() && arguments.gpu >= 0) {
    return drain_gpu(name, arguments.gpu, !arguments.no_wait, as_json);
  }
  if (commands.drain.is_chosen()) return drain(name, !arguments.no_wait, as_json);
  if (commands.resume.is_chosen()) {
    return send_request(server_of(name), {ControlOperation::kResume, 0}, as_json);
  }
  const Result<std::vector<Server>> servers = tools::choose_servers(arguments.names);
  if (!servers.ok()) return fail(servers.status());
  if (commands.reload.is_chosen()) return reload(*servers, as_json);
  if (commands.top.is_chosen()) return top(*servers, arguments.seconds, arguments.rounds, as_json);
  if (commands.topology.is_chosen()) return topology(*servers, !arguments.no_measure, as_json);
  if (const Status hosts = check_hosts(arguments.names, line.subcommands()); !hosts.ok()) {
    return fail(hosts, config::CommandLine::kWrongUse);
  }
  return show(*servers, as_json ? Form::kJson : arguments.list ? Form::kList : Form::kText);
}

}  // namespace
}  // namespace rcuda

int main(int argc, char** argv) { return rcuda::start(argc, argv); }
