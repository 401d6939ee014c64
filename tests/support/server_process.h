// The real rcuda-server on softgpu as a child process, and the sockets on which a test speaks to
// it. Used by one thread; sockets may be opened by several.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/wire/handshake.h"

namespace rcuda::test {

// Longer than any sane machine needs for a step.
std::chrono::steady_clock::time_point patience();

class ServerProcess {
 public:
  // Blocks until it serves, or has ended. `variables` are lines of its environment.
  explicit ServerProcess(std::vector<std::string> options = {},
                         const std::vector<std::string>& variables = {});
  ~ServerProcess();  // kills it
  ServerProcess(const ServerProcess&) = delete;

  pid_t pid() const { return pid_; }
  uint16_t port() const { return port_; }  // 0: it did not start
  // Its exit status; -1 when a signal ended it.
  int wait();

  UniqueFd connect_local() const;
  UniqueFd connect_tcp(const std::string& address = "127.0.0.1") const;

 private:
  pid_t pid_ = -1;
  uint16_t port_ = 0;
};

wire::Hello hello(const char* medium);
// The answer to a Hello, once a worker is there.
Result<std::pair<wire::MessageType, std::vector<std::byte>>> read_answer(int socket);

}  // namespace rcuda::test
