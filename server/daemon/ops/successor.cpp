#include "server/daemon/ops/successor.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/file_io.h"
#include "server/sandbox/start_process.h"

namespace rcuda::server {
namespace {

constexpr char kVariable[] = "RCUDA_SERVER_CARRIED";  // the descriptor of the carried state

std::vector<std::string> texts_of(char* const* list) {
  std::vector<std::string> texts;
  for (; *list; ++list) texts.emplace_back(*list);
  return texts;
}

// Waits for a child process, and kills it after kLongestCheck. Returns its status of waitpid().
int wait_for(pid_t child) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  pollfd item{process.get(), POLLIN, 0};
  const auto longest = std::chrono::milliseconds(kLongestCheck);
  if (!process || ::poll(&item, 1, static_cast<int>(longest.count())) != 1) {
    ::kill(child, SIGKILL);
  }
  int status = -1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace

std::optional<FileId> file_id(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return std::nullopt;
  return FileId{found.st_dev, found.st_ino};
}

std::optional<FileId> find_successor(const std::string& binary) {
  const std::optional<FileId> there = file_id(binary);
  return there == file_id("/proc/self/exe") ? std::nullopt : there;
}

Status check_successor(const std::string& binary, char* const* argv, const CarriedState& state) {
  constexpr int kState = STDERR_FILENO + 1;
  RCUDA_ASSIGN_OR_RETURN(const UniqueFd file, write_carried(state));
  std::vector<std::string> arguments = texts_of(argv);
  arguments.push_back(kCarriesOption);
  arguments.push_back(std::to_string(kState));
  const UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  RCUDA_ASSIGN_OR_RETURN(const pid_t child,
                         start_process({binary,
                                        arguments,
                                        texts_of(environ),
                                        {{nowhere.get(), STDOUT_FILENO}, {file.get(), kState}}}));
  const int status = wait_for(child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  if (WIFEXITED(status) && WEXITSTATUS(status) == kOtherLayout) {
    return {Code::kUnsupported, binary +
                                    " is a build that cannot continue the sessions of the running "
                                    "build: drain this server (rcuda-smi drain) and start it "
                                    "again"};
  }
  return {Code::kUnavailable,
          binary + " does not start with these settings: the server's log has its error"};
}

Status execute_successor(const std::string& binary, char* const* argv, const CarriedState& state) {
  RCUDA_ASSIGN_OR_RETURN(const UniqueFd file, write_carried(state));
  ::setenv(kVariable, std::to_string(file.get()).c_str(), 1);
  set_close_on_exec(state, false);
  ::execv(binary.c_str(), argv);
  const int error = errno;
  set_close_on_exec(state, true);
  ::unsetenv(kVariable);
  return Status::from_errno(error, "executing " + binary);
}

Result<std::optional<CarriedState>> take_carried() {
  const char* const number = ::getenv(kVariable);
  if (!number) return std::optional<CarriedState>();
  const UniqueFd file(std::atoi(number));
  ::unsetenv(kVariable);
  RCUDA_ASSIGN_OR_RETURN(CarriedState state, read_carried(file.get()));
  set_close_on_exec(state, true);
  return std::optional(std::move(state));
}

bool has_stuck_thread() {
  std::error_code error;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", error)) {
    // "4711 (name) S ...", where the name may contain anything.
    const std::string text = read_text((thread.path() / "stat").string());
    const size_t name_end = text.rfind(") ");
    if (name_end != std::string::npos && text.compare(name_end + 2, 1, "D") == 0) return true;
  }
  return false;
}

}  // namespace rcuda::server
