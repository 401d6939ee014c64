#include "tests/support/server_process.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/reach/connect.h"
#include "common/reach/protocol_hash.h"

extern char** environ;

namespace rcuda::test {

std::chrono::steady_clock::time_point patience() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(60);
}

ServerProcess::ServerProcess(std::vector<std::string> options,
                             const std::vector<std::string>& variables) {
  int ready[2];
  EXPECT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  UniqueFd read_end(ready[0]), write_end(ready[1]);
  options.insert(options.begin(),
                 {RCUDA_TEST_SERVER, "--port", "0", "--ready-fd", "3", "--driver", "softgpu",
                  "--image-cache", "none", "--staging-bytes", "4M", "--config", "/dev/null"});
  std::vector<char*> arguments;
  for (std::string& option : options) arguments.push_back(option.data());
  arguments.push_back(nullptr);
  std::vector<std::string> lines = {"SOFTGPU_DEVICES=2", "RCUDA_LOG=warn"};
  lines.insert(lines.end(), variables.begin(), variables.end());
  for (char** line = environ; *line; ++line) {
    if (!std::string_view(*line).starts_with("RCUDA_")) lines.emplace_back(*line);
  }
  std::vector<char*> environment;
  for (std::string& line : lines) environment.push_back(line.data());
  environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), 3);
  EXPECT_EQ(::posix_spawn(&pid_, RCUDA_TEST_SERVER, &actions, nullptr, arguments.data(),
                          environment.data()),
            0);
  ::posix_spawn_file_actions_destroy(&actions);
  write_end.reset();
  char line[32] = {};
  if (::read(read_end.get(), line, sizeof line - 1) > 0) {
    port_ = static_cast<uint16_t>(std::atoi(line));
  }
}

ServerProcess::~ServerProcess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  // A killed server does not remove its socket. A server of root has it in root's folder.
  if (port_ != 0) ::unlink(wire::LocalAddress::in_roots_folder(port_).text().c_str());
}

int ServerProcess::wait() {
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

UniqueFd ServerProcess::connect_local() const {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const wire::LocalAddress address(port_);
  EXPECT_EQ(::connect(socket.get(), address.get(), address.bytes()), 0) << std::strerror(errno);
  return socket;
}

UniqueFd ServerProcess::connect_tcp(const std::string& address) const {
  auto socket = wire::connect_tcp(address, port_, patience());
  EXPECT_TRUE(socket.ok()) << socket.status().message();
  return socket.ok() ? std::move(socket).value() : UniqueFd();
}

wire::Hello hello(const char* medium) {
  wire::Hello message;
  message.protocol_hash = wire::protocol_hash();
  message.medium = medium;
  message.pid = static_cast<uint32_t>(::getpid());
  message.program = "daemon_test";
  message.devices = {0};
  return message;
}

Result<std::pair<wire::MessageType, std::vector<std::byte>>> read_answer(int socket) {
  while (true) {
    auto message = wire::read_message(socket, patience());
    if (!message.ok() || message->first != wire::MessageType::kQueued) return message;
  }
}

}  // namespace rcuda::test
