// rcuda-exporter: sessions and GPUs of rcuda servers as metrics for Prometheus.
//
//   rcuda-exporter          this machine's server, on 127.0.0.1:9309/metrics
//   rcuda-exporter --listen 10.0.0.7:9309 node1 node2
//
// /healthz on the same address says whether the exporter itself runs.
//
// The exporter queries the servers at each scrape, as rcuda-smi does. It exports the sessions that
// its user may see; operators and holders of an observer's token see all sessions
// (docs/security.md). It is a separate process so that a server's daemon, which may run as root,
// does not contain a web server.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <sys/socket.h>

#include "common/base/host_port.h"
#include "common/base/mutex.h"
#include "common/base/standard_descriptors.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/base/version.h"
#include "common/config/command_line.h"
#include "tools/base/server_query.h"
#include "tools/rcuda-exporter/families.h"

namespace rcuda {
namespace {

using tools::Server;

class Servers : public prometheus::Collectable {
 public:
  explicit Servers(std::vector<Server> servers) : servers_(std::move(servers)) {}

  // Called on threads of the web server. A server that does not answer within a few seconds counts
  // as missing.
  std::vector<prometheus::MetricFamily> Collect() const override {
    const std::vector<tools::Told> all = tools::ask_all(servers_);
    exporter::Families families;
    for (size_t i = 0; i < servers_.size(); ++i) {
      const std::string name = servers_[i].text();
      // If the query for sessions failed, the GPUs were not queried.
      const Status& error = all[i].status.ok() ? all[i].gpus.status() : all[i].status.status();
      log_change(name, error);
      if (!all[i].status.ok()) {
        families.add_missing(name);
        continue;
      }
      families.add_server(name, *all[i].status);
      if (all[i].gpus.ok()) families.add_gpus(name, *all[i].status, *all[i].gpus);
    }
    return families.take();
  }

 private:
  // Logs a line when a server stops answering and when it answers again, not at each scrape.
  void log_change(const std::string& server, const Status& status) const {
    MutexLock lock(mutex_);
    if (status.ok() ? missing_.erase(server) == 0 : !missing_.insert(server).second) return;
    std::fprintf(stderr, "rcuda-exporter: %s\n",
                 status.ok() ? (server + " answers again").c_str() : status.context().c_str());
  }

  const std::vector<Server> servers_;
  mutable Mutex mutex_;  // scrapes may come at the same time
  mutable std::set<std::string> missing_ RCUDA_GUARDED_BY(mutex_);
};

// The web server listens on all addresses if only a port is given, and does not resolve host names.
Status check_address(const std::string& address) {
  std::string host;
  uint16_t port = 0;
  in6_addr number;
  const bool is_address = parse_host_port(address, ":", &host, &port) && port != 0 &&
                          (::inet_pton(AF_INET, host.c_str(), &number) == 1 ||
                           ::inet_pton(AF_INET6, host.c_str(), &number) == 1);
  if (is_address) return {};
  return Status(Code::kInvalidArgument,
                "--listen " + address +
                    " is not usable: write the address of an interface and a port, such as "
                    "127.0.0.1:9309 or [::1]:9309; 0.0.0.0:9309 is all IPv4 addresses");
}

// Binds the address before the web server does, because the web server's error does not name the
// reason.
Status check_free(const std::string& address) {
  std::string host;
  uint16_t port = 0;
  if (!parse_host_port(address, ":", &host, &port)) return {};
  sockaddr_in v4{.sin_family = AF_INET, .sin_port = htons(port)};
  sockaddr_in6 v6{.sin6_family = AF_INET6, .sin6_port = htons(port)};
  const bool is_v4 = ::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1;
  if (!is_v4) (void)::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr);
  const auto* const name =
      is_v4 ? reinterpret_cast<const sockaddr*>(&v4) : reinterpret_cast<const sockaddr*>(&v6);
  const UniqueFd socket(::socket(name->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), name, is_v4 ? sizeof v4 : sizeof v6) == 0 &&
      ::listen(socket.get(), 1) == 0) {
    return {};
  }
  const int error = errno;
  static const std::map<int, std::string> kRemedies = {
      {EADDRINUSE,
       "another program uses this port (ss -ltnp shows which): end it, or choose "
       "another port with --listen"},
      {EADDRNOTAVAIL,
       "this machine does not have that address (ip address shows those that it has)"},
      {EACCES, "ports below 1024 are for root: choose a higher port with --listen"}};
  const auto remedy = kRemedies.find(error);
  const std::string why = remedy == kRemedies.end() ? std::strerror(error) : remedy->second;
  return Status(Code::kUnavailable, "cannot serve " + address + ": " + why);
}

// The exporter's own metric, for /metrics and /healthz. Queries no server.
class Health : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    exporter::Families families;
    families.add_exporter();
    return families.take();
  }
};

int run(const std::string& address, std::vector<Server> servers) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // before there are other threads
  const auto collected = std::make_shared<Servers>(std::move(servers));
  prometheus::Exposer exposer(address);
  exposer.RegisterCollectable(collected);
  const auto health = std::make_shared<Health>();
  exposer.RegisterCollectable(health);
  exposer.RegisterCollectable(health, "/healthz");
  std::printf("http://%s/metrics\n", address.c_str());
  std::fflush(stdout);
  int signal = 0;
  ::sigwait(&ends, &signal);
  return 0;
}

int start(int argc, char** argv) {
  open_standard_descriptors();
  config::CommandLine line("rcuda-exporter",
                           "Sessions and GPUs of rcuda servers as metrics for Prometheus.",
                           version_of("rcuda-exporter"));
  std::string address = "127.0.0.1:9309";
  std::vector<std::string> names;
  line.option("--listen", &address,
              "address:port that serves /metrics, readable by every host that reaches it")
      .show_default();
  line.option("server", &names,
              "host or host:port, 8308 unless given (default: the servers of RCUDA_DEVICES, or "
              "localhost)")
      .type_name("");
  if (const std::optional<int> status = line.parse(argc, argv)) return *status;
  Result<std::vector<Server>> servers = tools::choose_servers(names);
  const Status usable = servers.ok() ? check_address(address) : servers.status();
  if (!usable.ok()) {
    std::fprintf(stderr, "rcuda-exporter: %s\n", usable.context().c_str());
    return config::CommandLine::kWrongUse;
  }
  if (const Status free = check_free(address); !free.ok()) {
    std::fprintf(stderr, "rcuda-exporter: %s\n", free.context().c_str());
    return 1;
  }
  try {
    return run(address, std::move(servers).value());
  } catch (const std::exception& error) {  // prometheus-cpp and its web server throw
    std::fprintf(stderr, "rcuda-exporter: cannot serve %s: %s\n", address.c_str(), error.what());
    return 1;
  }
}

}  // namespace
}  // namespace rcuda

int main(int argc, char** argv) { return rcuda::start(argc, argv); }
