// LocalLookup: a process keeps a few bytes, and perhaps a descriptor, under a secret key. Other
// processes of the same user on the same machine look them up. A server may also serve root.
//
// The process that keeps it has a LookupServer, with one thread and an abstract Unix socket. Every
// user can read the names of such sockets (/proc/net/unix) and may take one that is free. So both
// sides check that the other is of their own user, and the key alone gives access. All failures of
// a lookup that the other process decides look the same.
//
// Threads: any may call look_up(); the server calls `find` on its thread. Blocking: look_up(), for
// at most a second unless the caller names a peer. Errors: kNotFound if there is nothing under the
// key or no such server; otherwise the resource that this process lacks. While a server's process
// has no free descriptor, callers wait until it has one.
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

// A key that nobody can guess.
rcuda::Result<LookupKey> make_lookup_key();

class LookupServer {
 public:
  struct Item {
    LookupNote note{};
    int descriptor = -1;                // -1: none; passed on, not taken
    std::shared_ptr<const void> keeps;  // keeps the descriptor open while it is passed on
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
// The same for a server with kRootToo in the process `pid`. Waits without a limit for its answer.
rcuda::Result<LookupResult> look_up_in(int pid, const std::string& name, uint32_t kind,
                                       const LookupKey& key);

}  // namespace softgpu::driver
