// The output of rcuda-smi. A Look is the state of a server at one time. It is printed as text or
// JSON; two Looks at a server show its activity in between.
//
// Any thread. Pure, except for look(), which queries the servers and blocks as wire::ask() does
// (common/reach/ask.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/status.h"
#include "common/messages/gpu_report.h"
#include "common/messages/server_status.h"
#include "tools/base/server_query.h"

namespace rcuda::smi {

struct Look {
  std::string server;  // host:port
  Status error;        // why the server's status is missing; the other members are then empty
  wire::ServerStatus status;
  wire::GpuReport gpus;  // empty if the server does not report it
  Status gpus_error;     // why `gpus` is missing although `status` is not
  std::chrono::steady_clock::time_point at;
};

std::vector<Look> look(const std::vector<tools::Server>& servers);

// Describes the parking of a session: "parking" while its memory moves to the host, then "parked
// for 5s, 20 GiB in the host's memory". Empty for other sessions.
std::string park_text(const wire::ServerStatus::Session& session);
// Returns the lines that `rcuda-smi` prints for a server.
std::string text_of(const Look& look);
// Returns the lines that `rcuda-smi -L` prints: names, UUIDs, and the devices as RCUDA_DEVICES
// names them.
std::string list_of(const Look& look);
nlohmann::json json_of(const Look& look);
// JSON as text that ends with a newline. `indent` -1: all on one line.
std::string json_text_of(const nlohmann::json& json, int indent = 2);
// Returns the name of a device in RCUDA_DEVICES: host@port:gpu.
std::string device_name(const Look& look, uint32_t ordinal);

// Returns the screen of `rcuda-smi top`: GPUs, then sessions, sorted by launch rate. `before`: the
// previous looks at the same servers; rates cover the time since then. The rates of a new session
// cover the time since its start.
std::string top_of(const std::vector<Look>& before, const std::vector<Look>& now);

}  // namespace rcuda::smi
