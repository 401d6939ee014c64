#include "tools/rcuda-run/demo_server.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rcuda::tools {
namespace {

// Removes the user's settings for servers, which are meant for other servers.
void forget_server_settings() {
  std::vector<std::string> names;
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view text = *variable;
    if (text.starts_with("RCUDA_SERVER_")) names.emplace_back(text.substr(0, text.find('=')));
  }
  for (const std::string& name : names) unsetenv(name.c_str());
}

// Runs in the child: executes the server, which writes its port to `ready` and its log to `log`.
[[noreturn]] void become_server(const std::string& binary, int ready, int log, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);  // the parent ended before prctl()
  ::fcntl(ready, F_SETFD, 0);
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  forget_server_settings();
  setenv("RCUDA_LOG", "info", 1);
  // The server is stopped immediately after the program's end. It gets this time to end the
  // session.
  setenv("RCUDA_SERVER_DRAIN_TIMEOUT", "2s", 1);
  const std::string ready_text = std::to_string(ready);
  ::execl(binary.c_str(), binary.c_str(), "--config", "/dev/null", "--port", "0", "--pool", "1",
          "--image-cache", "none", "--ready-fd", ready_text.c_str(), nullptr);
  ::dprintf(log, "cannot run %s: %m\n", binary.c_str());
  ::_exit(127);
}

// How long the server's start and end may take: a driver that hangs can block both.
constexpr int kStartMs = 60'000;
constexpr int kEndMs = 10'000;

// Reads a line, until its end or until all writers have closed the pipe. Returns it without the
// newline, or an empty text if nothing arrives in time.
std::string read_line(int fd) {
  std::string text;
  char part[64];
  for (;;) {
    pollfd item{fd, POLLIN, 0};
    const int ready = ::poll(&item, 1, kStartMs);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return {};
    const ssize_t length = ::read(fd, part, sizeof part);
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0) break;
    text.append(part, static_cast<size_t>(length));
    if (text.back() == '\n') break;
  }
  return text.substr(0, text.find('\n'));
}

}  // namespace

DemoServer::DemoServer(DemoServer&& other) noexcept
    : process_(std::exchange(other.process_, -1)),
      log_(std::move(other.log_)),
      port_(std::move(other.port_)) {}

Result<DemoServer> DemoServer::start(const std::string& binary) {
  DemoServer server;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return Status::from_errno(errno, "cannot start the demonstration's server (pipe2)");
  UniqueFd ready(ends[0]), write_end(ends[1]);
  server.log_.reset(::memfd_create("rcuda-server.log", MFD_CLOEXEC));
  if (!server.log_)
    return Status::from_errno(errno, "cannot start the demonstration's server (memfd_create)");
  const pid_t parent = ::getpid();
  server.process_ = ::fork();
  if (server.process_ < 0)
    return Status::from_errno(errno, "cannot start the demonstration's server (fork)");
  if (server.process_ == 0) become_server(binary, write_end.get(), server.log_.get(), parent);
  write_end.reset();
  server.port_ = read_line(ready.get());
  if (server.port_.empty()) {
    server.stop();
    return Status(Code::kUnavailable, binary + " did not start:\n" + server.log());
  }
  return server;
}

void DemoServer::stop() {
  if (process_ < 0) return;
  ::kill(process_, SIGTERM);
  // A loop of short waits, because pidfd_open() is missing in old kernels and some sandboxes.
  constexpr int kLookMs = 5;
  bool has_ended = false;
  for (int ms = 0; !has_ended && ms < kEndMs; ms += kLookMs) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kLookMs));
    has_ended = ::waitpid(process_, nullptr, WNOHANG) > 0;
  }
  if (!has_ended) {
    ::kill(process_, SIGKILL);
    while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  process_ = -1;
}

std::string DemoServer::log() const {
  std::string text;
  char part[4096];
  // pread(), because the server writes at the offset that both processes share.
  for (;;) {
    const ssize_t length = ::pread(log_.get(), part, sizeof part, static_cast<off_t>(text.size()));
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0) return text;
    text.append(part, static_cast<size_t>(length));
  }
}

}  // namespace rcuda::tools
