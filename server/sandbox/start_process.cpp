#include "server/sandbox/start_process.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include "common/base/unique_fd.h"

namespace rcuda::server {
namespace {

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Result<pid_t> start_process(Program program) {
  int first_free = STDERR_FILENO + 1;
  for (const auto& [from, to] : program.descriptors) first_free = std::max(first_free, to + 1);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDWR, 0);
  // The numbers of the copies are above all targets, so no adddup2() overwrites a copy that is
  // still needed.
  std::vector<UniqueFd> copies;
  int error = 0;
  for (const auto& [from, to] : program.descriptors) {
    copies.emplace_back(::fcntl(from, F_DUPFD_CLOEXEC, first_free));
    if (!copies.back()) error = errno;
    ::posix_spawn_file_actions_adddup2(&actions, copies.back().get(), to);
  }
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(
      &attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t pid = -1;
  if (error == 0) {
    error = ::posix_spawn(&pid, program.file.c_str(), &actions, &attributes,
                          pointers_to(program.arguments).data(),
                          pointers_to(program.environment).data());
  }
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error == 0) return pid;
  return Status::from_errno(error, "cannot start " + program.arguments.front() + " from " +
                                       program.file +
                                       " (if this file is damaged, install rcuda-server again)");
}

void close_descriptors_from(int first) {
  if (::close_range(static_cast<unsigned>(first), ~0u, 0) == 0) return;
  for (long number = ::sysconf(_SC_OPEN_MAX); --number >= first;) ::close(static_cast<int>(number));
}

}  // namespace rcuda::server
