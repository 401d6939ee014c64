// The real rcuda-server on softgpu as a child process, and the sockets that a test connects to it.
// One thread uses the object; several threads may open sockets.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/messages/handshake.h"
#include "common/messages/message_io.h"

namespace rcuda::test {

// A deadline that no step of a working test reaches.
std::chrono::steady_clock::time_point patience();

class ServerProcess {
 public:
  // Blocks until the server accepts connections or has ended. `variables` are lines
  // NAME=value of its environment.
  explicit ServerProcess(std::vector<std::string> options = {},
                         const std::vector<std::string>& variables = {});
  ~ServerProcess();  // kills it
  ServerProcess(const ServerProcess&) = delete;

  pid_t pid() const { return pid_; }
  uint16_t port() const { return port_; }  // 0: it did not start
  // Waits for the server to end. Returns its exit status, or -1 if a signal ended it.
  int wait();

  UniqueFd connect_local() const;
  UniqueFd connect_tcp(const std::string& address = "127.0.0.1") const;

 private:
  pid_t pid_ = -1;
  uint16_t port_ = 0;
};

wire::Hello hello(const char* medium);
// Reads the answer to a Hello. Blocks while the client is queued for a worker.
Result<std::pair<wire::MessageType, std::vector<std::byte>>> read_answer(int socket);

}  // namespace rcuda::test
