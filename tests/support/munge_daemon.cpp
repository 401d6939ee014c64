#include "tests/support/munge_daemon.h"

#include <csignal>
#include <vector>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/unique_fd.h"

namespace rcuda::test {
namespace {

bool accepts_connections(const std::string& path) {
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace

MungeDaemon::MungeDaemon(char key, const std::string& preload) {
  std::vector<std::string> arguments = {
      RCUDA_TEST_MUNGED,
      "--foreground",
      "--force",  // accepts any location and permissions of the folder for temporary files
      "--num-threads=1",
      "--origin=127.0.0.1",
      "--socket=" + socket(),
      "--key-file=" + folder_.write("key", std::string(64, key)),
      "--pid-file=" + folder_.file("pid"),
      "--seed-file=" + folder_.file("seed"),
  };
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  std::string variable = "LD_PRELOAD=" + preload;
  char* variables[] = {variable.data(), nullptr};
  const UniqueFd log(::open(folder_.write("log", "").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(log.get(), STDOUT_FILENO);
  ::dup2(log.get(), STDERR_FILENO);
  ::execve(pointers[0], pointers.data(), variables);
  ::_exit(127);
}

bool MungeDaemon::wait_until_ready() {
  while (!accepts_connections(socket())) {
    if (::waitpid(pid_, nullptr, WNOHANG) != 0) {
      pid_ = -1;
      return false;
    }
    ::usleep(10'000);
  }
  return true;
}

void MungeDaemon::stop(int signal) {
  if (pid_ <= 0) return;
  ::kill(pid_, signal);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace rcuda::test
