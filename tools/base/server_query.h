// What the commands that ask a server share: the name of a server on the command line, a connection
// on which the user is known, and one question and its answer.
//
// Threads: any. Blocking: until the server has answered, a few seconds at most. Errors name the
// server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/wire/gpu_report.h"
#include "common/wire/handshake.h"

namespace rcuda::tools {

struct Server {
  std::string host;
  uint16_t port = wire::kDefaultPort;
  std::string text() const { return host + ":" + std::to_string(port); }
};

// Parses host[:port], or host[@port] as in RCUDA_DEVICES; an IPv6 address is in brackets.
Result<Server> parse_server(const std::string& text);

// Sends a message and returns the body of the answer, which must be of the type `wanted`. A refusal
// has the server's reason; it is kUnavailable if another time may do, else kDenied.
// kTimeout: the question was sent, and no answer came.
Result<std::vector<std::byte>> ask(const Server& server, wire::MessageType question,
                                   const std::vector<std::byte>& body, wire::MessageType wanted);

// What a server tells of its sessions and of its GPUs.
Result<wire::ServerStatus> status_of(const Server& server);
Result<wire::GpuReport> gpus_of(const Server& server);

// Both, of all servers at once, so that one that does not answer delays no other. In the given
// order. The GPUs of a server that does not tell its sessions are not asked for.
struct Told {
  Result<wire::ServerStatus> status;
  Result<wire::GpuReport> gpus;
};
std::vector<Told> ask_all(const std::vector<Server>& servers);

// The session that a GPU's process stands for; null if the asker is not told of it.
const wire::ServerStatus::Session* session_of(const wire::ServerStatus& status,
                                              const wire::GpuReport::Gpu& gpu,
                                              const wire::GpuReport::Process& process);

// A figure of the server's NVML, by nvml::Figure; nothing if it is not known.
std::optional<uint64_t> known(uint64_t figure);
std::optional<uint64_t> figure_of(const wire::GpuReport& report, const wire::GpuReport::Gpu& gpu,
                                  size_t figure);

}  // namespace rcuda::tools
