// The real munged as a child process, with its own key, socket and files in a temporary folder. It
// is independent of the system's munged. One thread uses the object.
#pragma once

#include <csignal>
#include <string>

#include <sys/types.h>

#include "tests/support/temp_folder.h"

namespace rcuda::test {

class MungeDaemon {
 public:
  // Daemons with the same key accept each other's credentials. `preload` is a library that is
  // preloaded into munged.
  explicit MungeDaemon(char key, const std::string& preload = "");
  ~MungeDaemon() { stop(SIGKILL); }
  MungeDaemon(const MungeDaemon&) = delete;

  // Blocks until munged accepts connections. Returns false if munged has ended; log() says why.
  bool wait_until_ready();
  // With SIGTERM, munged removes its socket; with SIGKILL, the socket stays.
  void stop(int signal);

  std::string socket() const { return folder_.file("socket"); }
  std::string log() const { return folder_.read("log"); }

 private:
  TempFolder folder_;
  pid_t pid_ = -1;
};

}  // namespace rcuda::test
