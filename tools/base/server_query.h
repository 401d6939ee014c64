// Shared by the commands that query servers: the name of a server on the command line, and a query
// on a connection that identifies the user.
//
// Threads: any. Blocking: as wire::ask() (common/reach/ask.h). Errors name the server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/messages/gpu_report.h"
#include "common/messages/message_io.h"
#include "common/messages/server_status.h"
#include "common/reach/ask.h"

namespace rcuda::tools {

struct Server {
  std::string host;
  uint16_t port = wire::kDefaultPort;
  std::string text() const { return host + ":" + std::to_string(port); }
};

// Parses host[:port], or host[@port] as in RCUDA_DEVICES; an IPv6 address is in brackets.
Result<Server> parse_server(const std::string& text);
// For check() of an option: the error of a malformed name.
inline Status check_server(const std::string& name) { return parse_server(name).status(); }

// Returns the servers that a command line names, each once: `names`; without names the servers of
// RCUDA_DEVICES, and without that variable this machine's server. Errors: a malformed name or list.
Result<std::vector<Server>> choose_servers(const std::vector<std::string>& names);

// Sends a message and returns the answer, which must be of the type `wanted`. A refusal has the
// server's reason; its code is kUnavailable if a later attempt may succeed, otherwise kDenied.
// kTimeout: the query was sent, but no answer arrived.
template <typename Answer>
Result<Answer> ask(const Server& server, wire::MessageType question,
                   const std::vector<std::byte>& body, wire::MessageType wanted) {
  RCUDA_ASSIGN_OR_RETURN(const auto answer,
                         wire::ask(server.host, server.port, question, body, wanted));
  return wire::decode<Answer>(answer);
}

// A server's reports of its state and of its GPUs. ask_all() queries all servers at the same time,
// so a server that does not answer does not delay the others. It returns the reports in the order
// of `servers`. If a server does not report its state, its GPUs are not queried.
struct Told {
  Result<wire::ServerStatus> status;
  Result<wire::GpuReport> gpus;
};
std::vector<Told> ask_all(const std::vector<Server>& servers);

// Returns the session of a GPU's process, or null if the server does not report that session to
// this user.
const wire::ServerStatus::Session* session_of(const wire::ServerStatus& status,
                                              const wire::GpuReport::Gpu& gpu,
                                              const wire::GpuReport::Process& process);

// Returns the leases of a device. If it has none, all members are empty or zero.
wire::ServerStatus::Leased leases_of(const wire::ServerStatus& status, uint32_t ordinal);

// Return a figure of the server's NVML. nullopt if the server does not know the figure, or, for
// figure_of(), has another list of figures. known(): `figure` is the figure's value in a report.
// figure_of(): `figure` is an nvml::Figure.
std::optional<uint64_t> known(uint64_t figure);
std::optional<uint64_t> figure_of(const wire::GpuReport& report, const wire::GpuReport::Gpu& gpu,
                                  size_t figure);

}  // namespace rcuda::tools
