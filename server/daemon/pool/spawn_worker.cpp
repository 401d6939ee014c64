#include "server/daemon/pool/spawn_worker.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

namespace rcuda::server {
Result<pid_t> spawn_worker(const std::string& binary, const WorkerEnds& ends, uint32_t base,
                           std::vector<std::string> environment) {
  std::vector<char*> environment_pointers;
  environment_pointers.reserve(environment.size() + 1);
  for (std::string& line : environment) environment_pointers.push_back(line.data());
  environment_pointers.push_back(nullptr);
  std::string name = "rcuda-worker", flag = "--worker", number = std::to_string(base);
  char* arguments[] = {name.data(), flag.data(), number.data(), nullptr};

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  // The numbers of the ends are above all targets, so none is overwritten before it is copied.
  ::posix_spawn_file_actions_adddup2(&actions, ends.log, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, ends.log, STDERR_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, ends.control, kWorkerControl);
  ::posix_spawn_file_actions_adddup2(&actions, ends.reports, kWorkerReports);
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  // Each worker has its own process group, so Ctrl-C at the terminal reaches only the daemon, which
  // then stops the workers.
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(
      &attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, binary.c_str(), &actions, &attributes, arguments,
                                  environment_pointers.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    return Status::from_errno(error, "cannot start a worker by " + binary +
                                         " (if it is not usable, install rcuda-server again)");
  }
  return pid;
}

}  // namespace rcuda::server
