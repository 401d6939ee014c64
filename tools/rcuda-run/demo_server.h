// DemoServer: an rcuda-server on this machine for a demonstration. It listens on a free loopback
// port, has no configuration, and uses NVIDIA's driver if that works, otherwise softgpu.
// For one thread. The server ends with the object, and also when this process ends in any way.
#pragma once

#include <string>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda::tools {

class DemoServer {
 public:
  // Starts `binary` and blocks until it serves. An error contains the server's messages.
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
