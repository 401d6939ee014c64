// rcuda-lease: leases devices of a server to users and jobs (docs/leases.md).
//
//   rcuda-lease take node1 --devices 2 --for 2h --user ada --job "slurm 4711"
//   rcuda-lease list node1                  without a name: the servers of RCUDA_DEVICES
//   rcuda-lease extend node1 1a2b3c4d --for 1h
//   rcuda-lease revoke node1 --job "slurm 4711"
//
// take prints the variables that a program needs, and nothing else on stdout.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/date_text.h"
#include "common/base/host_port.h"
#include "common/base/json_text.h"
#include "common/base/parse_number.h"
#include "common/base/printable.h"
#include "common/base/random_bytes.h"
#include "common/base/standard_descriptors.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "common/base/version.h"
#include "common/config/command_line.h"
#include "common/identity/encoding.h"
#include "common/messages/lease_messages.h"
#include "tools/base/server_query.h"

namespace rcuda {
namespace {

constexpr const char* kFooter =
    R"(NODE is host or host:port of a server, as for rcuda-smi. A lease is exclusive unless it is taken
with --shared: no session without the lease may use the lease's devices. A session under a lease may
use only the lease's devices. When a lease ends, its sessions end, too.

"take" prints two lines for the environment of the program:
    RCUDA_DEVICES=node1:0,node1:3
    RCUDA_LEASE=node1=1a2b3c4d:...
The second line holds a secret. To use leases of several servers, join their entries with commas in
each of the two variables.

The user whom a lease is for (--user) needs no secret: RCUDA_LEASE=node1=1a2b3c4d suffices.

A job has at most one lease on a server. "take" for a job that has a lease prints the same lines
again; "revoke" of a lease that has ended succeeds. So prologs and epilogs may run twice.)";

constexpr auto kRetryInterval = std::chrono::milliseconds(500);

struct Options {
  std::vector<std::string> nodes;  // the servers of `list`
  std::string node, id, job, user, devices = "1", lasts, wait = "0s";
  bool shared = false, oversubscribed = false, json = false;
};

Status check_life(const std::string& text) {
  if (parse_life(text)) return {};
  return Status(Code::kInvalidArgument,
                "\"" + text + "\" is not usable: write " + kLifeForms + " (until it is revoked)");
}

Status check_wait(const std::string& text) {
  if (parse_time(text)) return {};
  return Status(Code::kInvalidArgument, "\"" + text + "\" is not usable: write a time such as 30s");
}

Status check_id(const std::string& text) {
  if (wire::is_lease_id(text)) return {};
  return Status(Code::kInvalidArgument, "\"" + text +
                                            "\" is not usable: an id has eight lower-case "
                                            "hexadecimal digits");
}

// "2" means two devices, "=0,3" or "0,3" the devices 0 and 3. A list of a single device needs the
// equals sign.
Status parse_devices(std::string text, wire::LeaseRequest* request) {
  const Status refused(Code::kInvalidArgument,
                       "\"" + text + "\" is not usable: write a number (2) or a list (=0,3)");
  const bool named = text.starts_with('=') || text.find(',') != std::string::npos;
  if (text.starts_with('=')) text.erase(0, 1);
  while (!text.empty()) {
    uint32_t number = 0;
    const size_t comma = std::min(text.find(','), text.size());
    if (!parse_number(std::string_view(text).substr(0, comma), &number)) return refused;
    text.erase(0, comma + 1);
    if (named) request->devices.push_back(number);
    if (!named) request->count = number;
  }
  return named ? (request->devices.empty() ? refused : Status())
               : (request->count == 0 ? refused : Status());
}

Result<wire::LeaseAnswer> ask(const tools::Server& server, const wire::LeaseRequest& request) {
  return tools::ask<wire::LeaseAnswer>(server, wire::MessageType::kLeaseRequest,
                                       wire::encode(request), wire::MessageType::kLeaseAnswer);
}

std::string device_list(const std::vector<uint32_t>& devices, const std::string& before) {
  std::string text;
  for (const uint32_t device : devices) {
    text += (text.empty() ? "" : ",") + before + std::to_string(device);
  }
  return text;
}

std::string date_or_never(uint64_t seconds) {
  return seconds == 0 ? "never" : date_text(static_cast<std::time_t>(seconds));
}

// Returns the part of an entry of RCUDA_DEVICES before the device's number.
std::string place_of(const tools::Server& server) {
  std::string place = bracketed(server.host);
  if (server.port != wire::kDefaultPort) place += "@" + std::to_string(server.port);
  return place + ":";
}

// Chooses the lease's public id, so that the request can be repeated if its answer is lost.
Status choose_id(wire::LeaseRequest* request) {
  std::array<uint8_t, 4> id;
  RCUDA_RETURN_IF_ERROR(fill_randomly(id));
  request->id = identity::to_hex(id);
  return {};
}

// Requests all parts of the list and returns all leases, oldest first.
Result<wire::LeaseAnswer> ask_for_list(const tools::Server& server, wire::LeaseRequest request) {
  wire::LeaseAnswer all;
  while (true) {
    Result<wire::LeaseAnswer> part = ask(server, request);
    if (!part.ok()) return part;
    if (part->leases.empty()) break;
    for (wire::LeaseInfo& lease : part->leases) {
      if (lease.id <= request.id)
        return Status(Code::kProtocol,
                      server.text() +
                          " sent a list of leases that is not ordered by id: install the "
                          "same rcuda build on both machines");
      request.id = lease.id;
      all.leases.push_back(std::move(lease));
    }
  }
  std::stable_sort(all.leases.begin(), all.leases.end(),
                   [](const auto& a, const auto& b) { return a.created < b.created; });
  return all;
}

// Prints the server's note on a request that it has carried out.
void print_message(const tools::Server& server, const wire::LeaseAnswer& answer) {
  if (answer.message.empty()) return;
  std::fprintf(stderr, "rcuda-lease: %s: %s\n", server.text().c_str(),
               printable(answer.message).c_str());
}

// With --wait, retries while devices are taken: the devices of a lease that has ended stay busy
// until its sessions have ended.
Status take(const Options& options, const tools::Server& server, wire::LeaseRequest request) {
  const auto patience = parse_time(options.wait);  // check_wait() has accepted it
  RCUDA_RETURN_IF_ERROR(parse_devices(options.devices, &request));
  if (request.id.empty()) RCUDA_RETURN_IF_ERROR(choose_id(&request));
  request.user = options.user;
  request.shared = options.shared;
  request.oversubscribed = options.oversubscribed;
  request.waits = patience->count() > 0;
  const auto end = std::chrono::steady_clock::now() + *patience;
  Result<wire::LeaseAnswer> answer = ask(server, request);
  for (bool lost = false; !answer.ok();) {
    // The repeated request has the same id, so the server does not make a second lease.
    const bool repeats = answer.status().code() == Code::kTimeout && !std::exchange(lost, true);
    const bool waits =
        answer.status().code() == Code::kUnavailable && std::chrono::steady_clock::now() < end;
    if (!repeats && !waits) break;
    if (waits) std::this_thread::sleep_for(kRetryInterval);
    answer = ask(server, request);
  }
  if (answer.status().code() == Code::kTimeout && request.job.empty()) {
    return Status(Code::kTimeout, answer.status().context() + ". Lease " + request.id +
                                      " may have been taken: revoke it (rcuda-lease revoke " +
                                      options.node + " " + request.id + ")");
  }
  if (!answer.ok()) return answer.status();
  // Checks the id, because it goes into files that scripts read.
  if (answer->leases.size() != 1 || !wire::is_lease_id(answer->leases.front().id)) {
    return Status(Code::kProtocol, server.text() +
                                       " sent an answer without a valid lease: install the same "
                                       "rcuda build on both machines");
  }
  print_message(server, *answer);
  const wire::LeaseInfo& lease = answer->leases.front();
  const wire::LeaseKey key{server.host, server.port, lease.id, answer->secret};
  std::printf("RCUDA_DEVICES=%s\nRCUDA_LEASE=%s\n",
              device_list(lease.devices, place_of(server)).c_str(), wire::format(key).c_str());
  return {};
}

// The work counters of the lease's sessions, with the names of the server's audit log.
std::string work_json(const wire::LeaseInfo& lease) {
  std::string json = "\"begun\": " + std::to_string(lease.begun) +
                     ", \"device_ms\": " + std::to_string(lease.device_ms);
  for (size_t i = 0; i < wire::kWorkNames.size(); ++i) {
    json +=
        std::string(", \"") + wire::kWorkNames[i] + "\": " + std::to_string(lease.work.counts[i]);
  }
  return json;
}

struct Listed {
  std::string server;
  wire::LeaseInfo lease;
};

void print_json(const std::vector<Listed>& leases) {
  std::printf("[");
  const char* before = "";
  for (const auto& [server, lease] : leases) {
    std::printf(
        "%s\n  {\"server\": %s, \"id\": %s, \"job\": %s, \"user\": %s, \"creator\": %s, "
        "\"devices\": [%s], \"exclusive\": %s, \"oversubscribed\": %s, \"created\": %s, \"until\": "
        "%s, \"sessions\": %u, "
        "%s}",
        before, json_text(server).c_str(), json_text(lease.id).c_str(),
        json_text(lease.job).c_str(), json_text(lease.user).c_str(),
        json_text(lease.creator).c_str(), device_list(lease.devices, "").c_str(),
        lease.shared ? "false" : "true", lease.oversubscribed ? "true" : "false",
        json_text(date_or_never(lease.created)).c_str(),
        lease.until == 0 ? "null" : json_text(date_or_never(lease.until)).c_str(), lease.sessions,
        work_json(lease).c_str());
    before = ",";
  }
  std::printf("%s]\n", leases.empty() ? "" : "\n");
}

// `names_servers`: adds a column for the server, because the leases may be of several servers.
void print_table(const std::vector<Listed>& leases, bool names_servers) {
  if (leases.empty()) return;
  size_t widest = std::strlen("SERVER");
  for (const Listed& each : leases) widest = std::max(widest, each.server.size());
  const int width = names_servers ? static_cast<int>(widest) + 2 : 0;
  std::printf("%-*s%-8s  %-9s  %-12s  %-8s  %-20s  %-8s  %s\n", width, width ? "SERVER" : "", "ID",
              "KIND", "DEVICES", "USER", "UNTIL", "SESSIONS", "JOB");
  for (const auto& [server, lease] : leases) {
    std::printf("%-*s%-8s  %-9s  %-12s  %-8s  %-20s  %-8u  %s\n", width,
                width ? server.c_str() : "", lease.id.c_str(),
                lease.shared ? "shared" : "exclusive", device_list(lease.devices, "").c_str(),
                lease.user.empty() ? "-" : lease.user.c_str(), date_or_never(lease.until).c_str(),
                lease.sessions, lease.job.c_str());
  }
}

std::vector<Listed> listed(const tools::Server& server, std::vector<wire::LeaseInfo> leases) {
  std::vector<Listed> all;
  for (wire::LeaseInfo& lease : leases) all.push_back({server.text(), std::move(lease)});
  return all;
}

// Lists the leases of all servers that answer.
Status list(const Options& options) {
  RCUDA_ASSIGN_OR_RETURN(const std::vector<tools::Server> servers,
                         tools::choose_servers(options.nodes));
  wire::LeaseRequest request;
  request.operation = wire::LeaseOperation::kList;
  request.job = options.job;
  std::vector<Listed> all;
  Status failed;
  for (const tools::Server& server : servers) {
    Result<wire::LeaseAnswer> answer = ask_for_list(server, request);
    if (!answer.ok()) {
      if (!failed.ok()) std::fprintf(stderr, "rcuda-lease: %s\n", failed.context().c_str());
      failed = answer.status();
      continue;
    }
    std::ranges::move(listed(server, std::move(answer->leases)), std::back_inserter(all));
  }
  options.json ? print_json(all) : print_table(all, servers.size() > 1);
  return failed;
}

Status carry_out(const Options& options, wire::LeaseOperation operation, uint64_t seconds) {
  RCUDA_ASSIGN_OR_RETURN(const tools::Server server, tools::parse_server(options.node));
  wire::LeaseRequest request;
  request.operation = operation;
  request.id = options.id;
  request.job = options.job;
  request.seconds = seconds;
  if (operation == wire::LeaseOperation::kTake) return take(options, server, std::move(request));
  RCUDA_ASSIGN_OR_RETURN(wire::LeaseAnswer answer, ask(server, request));
  print_message(server, answer);
  if (options.json) print_json(listed(server, std::move(answer.leases)));
  return {};
}

// Adds the options that select a lease: its id or its job.
void add_lease(config::CommandLine* command, Options* options) {
  config::Option id =
      command->option("id", &options->id, "the id of the lease, as rcuda-lease list shows it");
  config::Option job = command->option("--job", &options->job, "the lease of this job");
  id.type_name("ID").excludes(job);
  job.type_name("TEXT");
}

int start(int argc, char** argv) {
  open_standard_descriptors();
  Options options;
  config::CommandLine line("rcuda-lease", "Leases devices of rcuda servers to users and jobs.",
                           version_of("rcuda-lease"));
  line.require_subcommand(1, 1);
  config::CommandLine& taking =
      line.subcommand("take", "take a lease and print the variables for it");
  config::CommandLine& extending = line.subcommand("extend", "change the end of a lease");
  config::CommandLine& revoking = line.subcommand("revoke", "end a lease and its sessions");
  config::CommandLine& listing = line.subcommand(
      "list", "show the leases; only operators of the server see leases of other users");
  for (config::CommandLine* command : {&taking, &extending, &revoking}) {
    command->option("node", &options.node, "host or host:port")
        .type_name("NODE")
        .required()
        .check(tools::check_server);
  }
  listing
      .option("node", &options.nodes,
              "host or host:port (default: the servers of RCUDA_DEVICES, or localhost)")
      .type_name("NODE")
      .check(tools::check_server);
  taking.option("--devices", &options.devices, "a number of devices, or their list (=0,3)")
      .type_name("N")
      .check([](const std::string& text) {
        wire::LeaseRequest request;
        return parse_devices(text, &request);
      })
      .show_default();
  for (config::CommandLine* command : {&taking, &extending}) {
    command->option("--for", &options.lasts, std::string(kLifeForms) + "; required")
        .type_name("TIME")
        .check(check_life);
  }
  taking
      .option("--user", &options.user, "the user of the lease (default: everyone with its secret)")
      .type_name("NAME");
  taking
      .option("--id", &options.id,
              "the new lease's id (default: random); leases of several servers may share an id")
      .type_name("ID")
      .check(check_id);
  taking
      .option("--job", &options.job,
              "the job of the lease, any text; a job has one lease on a server")
      .type_name("TEXT");
  taking.flag("--shared", &options.shared, "others may have leases of the same devices");
  taking.flag(
      "--oversubscribe", &options.oversubscribed,
      "the server may park idle sessions of the lease, if its setting oversubscribe allows it");
  taking.option("--wait", &options.wait, "how long to retry if devices are taken")
      .type_name("TIME")
      .check(check_wait)
      .show_default();
  add_lease(&extending, &options);
  add_lease(&revoking, &options);
  listing.option("--job", &options.job, "only the lease of this job").type_name("TEXT");
  for (config::CommandLine* command : {&revoking, &listing}) {
    command->flag("--json", &options.json,
                  "print the leases and the work of their sessions as JSON");
  }
  line.footer(kFooter);  // last, so that the subcommands do not inherit it
  if (const std::optional<int> status = line.parse(argc, argv)) return *status;

  const wire::LeaseOperation operation = taking.is_chosen()      ? wire::LeaseOperation::kTake
                                         : extending.is_chosen() ? wire::LeaseOperation::kExtend
                                         : revoking.is_chosen()  ? wire::LeaseOperation::kRevoke
                                                                 : wire::LeaseOperation::kList;
  const bool needs_end =
      operation == wire::LeaseOperation::kTake || operation == wire::LeaseOperation::kExtend;
  if (needs_end && options.lasts.empty()) {
    std::fprintf(
        stderr,
        "rcuda-lease: --for is missing: write how long the lease lasts: %s (until somebody "
        "revokes the lease)\n",
        kLifeForms);
    return config::CommandLine::kWrongUse;
  }
  const auto life = parse_life(options.lasts);
  const Status status =
      listing.is_chosen()
          ? list(options)
          : carry_out(options, operation, life ? static_cast<uint64_t>(life->count()) : 0);
  if (status.ok()) return 0;
  std::fprintf(stderr, "rcuda-lease: %s\n", status.context().c_str());
  return 1;
}

}  // namespace
}  // namespace rcuda

int main(int argc, char** argv) { return rcuda::start(argc, argv); }
