// Starts the server's processes. Any thread; blocks until the program runs. Errors: the system's.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "common/base/status.h"

namespace rcuda::server {

struct Program {
  std::string file;
  std::vector<std::string> arguments;    // the first is the process's name
  std::vector<std::string> environment;  // all of it, as NAME=value
  // For each descriptor, its number here and its number in the process. The caller keeps its own
  // descriptors, which are close-on-exec. The stdin of the process is /dev/null.
  std::vector<std::pair<int, int>> descriptors;
};

// No signal is blocked or ignored in the process. It has a process group of its own: Ctrl-C at the
// terminal reaches only the daemon, which then stops its processes.
Result<pid_t> start_process(Program program);

// Closes all of this process's descriptors from `first` on. For a process with one thread.
void close_descriptors_from(int first);

}  // namespace rcuda::server
