#include "tools/rcuda-doctor/server_checks.h"

#include <chrono>
#include <cstdlib>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include "common/base/list_text.h"
#include "common/base/unique_fd.h"
#include "common/base/units.h"
#include "common/base/version.h"
#include "common/identity/token_file.h"
#include "common/identity/users.h"
#include "common/messages/message_codec.h"
#include "common/messages/refusal.h"
#include "common/reach/connect.h"
#include "common/reach/identify.h"
#include "common/transport/media.h"

namespace rcuda::doctor {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(5);
// The doctor warns if the clocks differ by more, because tokens and leases end by the server's
// clock.
constexpr std::chrono::seconds kLargestSkew{30};

Finding good(const std::string& what) { return {Verdict::kGood, what, ""}; }
Finding bad(const Status& status) { return {Verdict::kBad, status.context(), ""}; }

// Returns the addresses to which programs resolve the host.
Result<std::string> addresses_of(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &list); error != 0) {
    return Status(Code::kNotFound,
                  "the name " + host + " has no address: " + ::gai_strerror(error));
  }
  std::string text;
  for (const addrinfo* each = list; each; each = each->ai_next) {
    char number[NI_MAXHOST] = "";
    ::getnameinfo(each->ai_addr, each->ai_addrlen, number, sizeof number, nullptr, 0,
                  NI_NUMERICHOST);
    append_item(&text, number);
  }
  ::freeaddrinfo(list);
  return text;
}

// Finds the user's credential for the server. A server of this machine needs no credential.
Finding find_credential(const wire::Credentials& credentials, const std::string& host,
                        uint16_t port) {
  const std::string& named = credentials.token_file.get();
  const std::string file = named.empty() ? identity::default_token_file() : named;
  const auto token = identity::find_token(named, host, port);
  if (!token.ok()) return {Verdict::kBad, "token: " + token.status().context(), ""};
  if (*token) return good("token " + (*token)->id + " for this server, in " + file);
  if (const std::string& pem = credentials.certificate.get(); !pem.empty()) {
    return good("no token for this server in " + file + "; the certificate " + pem + " is used");
  }
  return {Verdict::kNote, "no token for this server in " + file,
          "not needed on the server's own machine, or where both machines run munged"};
}

Finding describe_connection(const wire::Connection& connection) {
  if (connection.key) return good("TLS 1.3: the server and this user have proved their identities");
  return {Verdict::kNote, "no TLS: the server is on this machine, or RCUDA_SECURITY is none", ""};
}

// Describes the medium that sessions with the server use. `status`: the server's status.
Finding describe_medium(wire::Connection* connection, const wire::ServerStatus& status) {
  if (status.method == "ticket") {
    return good(std::string("sessions use ") +
                transport::plain_medium(transport::Reach::kThisMachine).name() +
                ": the server is on this machine");
  }
  connection->medium = &transport::plain_medium(transport::Reach::kNetwork);
  const std::string why = wire::choose_medium(connection);
  const std::string name = connection->medium->name();
  if (why.empty()) return good("sessions use " + name);
  return {Verdict::kNote, "sessions use " + name + ": " + why,
          connection->medium->traits.has_adapter
              ? ""
              : "rcuda-doctor without a server checks this machine's adapters"};
}

Result<wire::ServerStatus> ask_status(const wire::Connection& connection,
                                      Clock::time_point deadline) {
  RCUDA_RETURN_IF_ERROR(
      wire::write_message(connection.socket, wire::MessageType::kStatusQuery, {}, deadline));
  RCUDA_ASSIGN_OR_RETURN(const auto answer, wire::read_message(connection.socket, deadline));
  if (answer.first == wire::MessageType::kRefusal) {
    return wire::refusal_error(answer.second, "the server refuses this user", Code::kDenied);
  }
  if (answer.first != wire::MessageType::kStatus) {
    return Status(Code::kProtocol, "the server answered the status query with a message of type " +
                                       std::to_string(static_cast<uint32_t>(answer.first)) +
                                       ": install the same rcuda build on both machines");
  }
  return wire::decode<wire::ServerStatus>(answer.second);
}

}  // namespace

Findings describe_server(const wire::ServerStatus& status, const std::string& own_version,
                         uint64_t clock_ms) {
  Findings findings;
  const std::string roles = status.roles.empty() ? "" : ", role " + status.roles;
  findings.push_back(good("user: the server knows this user as " + status.user + " (" +
                          status.method + roles + ")"));
  const std::string build = "rcuda " + status.version + " (build " + status.build + ")";
  if (status.version == own_version) {
    findings.push_back(good("build: the server runs " + build));
  } else {
    findings.push_back({Verdict::kWarning,
                        "build: the server runs " + build + ", this machine has " + own_version,
                        "install the same version on both machines"});
  }
  const bool ahead = status.clock_ms > clock_ms;
  const std::chrono::milliseconds skew(ahead ? status.clock_ms - clock_ms
                                             : clock_ms - status.clock_ms);
  if (skew <= kLargestSkew) {
    findings.push_back(good("clock: " + rounded_time_text(skew) + " apart"));
  } else {
    findings.push_back({Verdict::kWarning,
                        "clock: the server's is " + rounded_time_text(skew) +
                            (ahead ? " ahead" : " behind") +
                            "; tokens, leases and MUNGE credentials expire too early or too late",
                        "synchronise both machines (chrony, systemd-timesyncd)"});
  }
  const std::string devices = std::to_string(status.devices.size()) + " device" +
                              (status.devices.size() == 1 ? "" : "s") + " (" + status.driver + ")";
  if (status.draining) {
    findings.push_back({Verdict::kWarning, "the server is draining: it takes no new sessions",
                        "name another server, or wait for it (RCUDA_WAIT=10m)"});
  } else {
    findings.push_back(good("sessions: " + devices));
  }
  if (!status.nccl.empty()) findings.push_back(good("collectives: " + status.nccl));
  return findings;
}

Findings check_server(const std::string& host, uint16_t port) {
  Findings findings;
  const auto end = [&](Finding finding) {
    findings.push_back(std::move(finding));
    return findings;
  };
  const Result<std::string> addresses = addresses_of(host);
  if (!addresses.ok()) return end(bad(addresses.status()));
  findings.push_back(good("name: " + host + " is " + *addresses));

  const Clock::time_point begin = Clock::now(), deadline = begin + kPatience;
  Result<UniqueFd> socket = wire::connect_tcp(host, port, deadline);
  if (!socket.ok()) return end(bad(socket.status()));
  const auto took = Clock::now() - begin;
  findings.push_back(good("port: " + std::to_string(port) + " accepts connections, after " +
                          rounded_time_text(took)));

  wire::Credentials credentials;
  const Status loaded = credentials.registry.load_environment();
  if (!loaded.ok()) return end(bad(loaded));
  findings.push_back(find_credential(credentials, host, port));
  if (findings.back().verdict == Verdict::kBad) return findings;
  wire::Connection connection;
  connection.socket = std::move(socket).value();
  const Status identified = wire::identify(&connection, host, port, credentials, deadline);
  if (!identified.ok()) return end(bad(Status(identified).with_context("identity")));
  findings.push_back(describe_connection(connection));

  Result<wire::ServerStatus> status = ask_status(connection, deadline);
  if (!status.ok()) return end(bad(status.status()));
  // A server of this machine may know the user by number only. Add the name.
  const uid_t user = ::geteuid();
  if (status->user == "uid " + std::to_string(user)) {
    status->user = identity::user_and_number(user);
  }
  const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  for (Finding& finding :
       describe_server(*status, version(), static_cast<uint64_t>(now.time_since_epoch().count()))) {
    findings.push_back(std::move(finding));
  }
  return end(describe_medium(&connection, *status));
}

}  // namespace rcuda::doctor
