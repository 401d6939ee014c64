// LocalLookup: a process keeps a few bytes, and perhaps a descriptor, under a secret key. Other
// processes of the same user on the same machine look them up. A server may also serve root.
//
// The process that keeps the bytes has a LookupServer, with one thread and an abstract Unix socket.
// Every user can read the names of such sockets (/proc/net/unix) and may bind a free name. So both
// sides check the user of the other process (look_up_in() checks its process id instead), and only
// the key gives access. The caller cannot distinguish the failures that the other process causes:
// all are kNotFound.
//
// Threads: any may call look_up(); the server calls `find` on its thread. Blocking: look_up(), for
// at most a second; look_up_in(), without a limit. Errors: kNotFound for an unknown key or server;
// otherwise this process lacks a resource, which the message names. While a server's process has no
// free descriptor, callers wait.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace softgpu::driver {

using LookupKey = std::array<uint8_t, 16>;
using LookupNote = std::array<std::byte, 112>;

// A key from the system's random numbers.
rcuda::Result<LookupKey> make_lookup_key();

class LookupServer {
 public:
  struct Item {
    LookupNote note{};
    int descriptor = -1;                // -1: none; sent to the caller, and not closed
    std::shared_ptr<const void> keeps;  // keeps the descriptor open while it is sent
  };
  using Find = std::function<std::optional<Item>(uint32_t kind, const LookupKey& key)>;

  LookupServer() = default;
  ~LookupServer();  // ends the thread
  LookupServer(const LookupServer&) = delete;
  LookupServer& operator=(const LookupServer&) = delete;

  enum class Serves { kOwnUser, kRootToo };
  // `name`: of the socket, unique on the machine. `thread`: for debuggers, 15 characters at most.
  rcuda::Status start(const std::string& name, const char* thread, Find find,
                      Serves serves = Serves::kOwnUser);
  bool started() const { return thread_.joinable(); }

 private:
  void serve();
  void answer(int caller) const;
  // Waits for `time`. False if the thread has to end.
  bool rest(std::chrono::milliseconds time) const;

  Find find_;
  Serves serves_ = Serves::kOwnUser;
  rcuda::UniqueFd listener_;
  rcuda::UniqueFd stop_;
  std::thread thread_;
};

struct LookupResult {
  LookupNote note{};
  rcuda::UniqueFd descriptor;
};
rcuda::Result<LookupResult> look_up(const std::string& name, uint32_t kind, const LookupKey& key);
// Like look_up(), for a server with kRootToo in the process `pid`. Waits without a limit for the
// answer.
rcuda::Result<LookupResult> look_up_in(int pid, const std::string& name, uint32_t kind,
                                       const LookupKey& key);

}  // namespace softgpu::driver
