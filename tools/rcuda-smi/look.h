// What rcuda-smi shows: one look at a server, as text or JSON, and what happened between two looks.
//
// Pure but for look(), which asks the server: a few seconds at most. Threads: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/status.h"
#include "common/wire/gpu_report.h"
#include "common/wire/handshake.h"
#include "tools/base/server_query.h"

namespace rcuda::smi {

struct Look {
  std::string server;  // host:port
  Status error;        // why the rest is empty
  wire::ServerStatus status;
  wire::GpuReport gpus;  // empty if the server does not tell
  Status gpus_error;     // why not, if the rest is there
  std::chrono::steady_clock::time_point at;
};

std::vector<Look> look(const std::vector<tools::Server>& servers);

// Lines as `rcuda-smi` prints them.
std::string text_of(const Look& look);
nlohmann::json json_of(const Look& look);

// The screen of `rcuda-smi top`: GPUs, then sessions, those that launch the most first. `before`: the
// looks at the same servers before; rates are since then. A session that was not there counts from its
// start.
std::string top_of(const std::vector<Look>& before, const std::vector<Look>& now);

}  // namespace rcuda::smi
