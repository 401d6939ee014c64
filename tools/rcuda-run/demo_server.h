// DemoServer: an rcuda-server of this machine for the time of a demonstration, on a free port of
// loopback and without a configuration, with NVIDIA's driver if it works and softgpu otherwise.
// For one thread. The server ends with the object, and with this process however that ends.
#pragma once

#include <string>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda::tools {

class DemoServer {
 public:
  // Starts `binary` and blocks until it serves. An error has the server's own messages.
  static Result<DemoServer> start(const std::string& binary);

  DemoServer(DemoServer&& other) noexcept;
  DemoServer& operator=(DemoServer&&) = delete;
  ~DemoServer() { stop(); }

  const std::string& port() const { return port_; }
  // Blocks until the server has ended. Afterwards log() is complete.
  void stop();
  std::string log() const;

 private:
  DemoServer() = default;

  pid_t process_ = -1;
  UniqueFd log_;
  std::string port_;
};

}  // namespace rcuda::tools
