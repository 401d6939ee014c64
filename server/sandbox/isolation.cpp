#include "server/sandbox/isolation.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rcuda::server {
namespace {

constexpr auto kThreadsEnd = std::chrono::seconds(2);

// setresuid() and setresgid() interpret this number as "leave the id as it is".
constexpr uint32_t kNobody = ~uint32_t{0};

Status refusal(const std::string& user, const char* call) {
  const int error = errno;
  return Status::from_errno(error, "the worker cannot become user " + user + ": " + call)
      .with_context(error == EPERM ? "rcuda-server needs the capabilities SETUID and SETGID to run "
                                     "sessions as their users"
                                   : "rcuda-server");
}

std::vector<uint32_t> sorted(std::vector<uint32_t> numbers) {
  std::ranges::sort(numbers);
  return numbers;
}

// Returns the numbers of a text, sorted. (In a user namespace, the kernel lists the groups in the
// order of their numbers outside of the namespace.)
std::vector<uint32_t> numbers_of(const std::string& text) {
  std::istringstream words(text);
  return sorted({std::istream_iterator<uint32_t>(words), {}});
}

// Whether a thread has the user's identity only, and no capability. `path`: its /proc/.../status.
bool is_only(const std::string& path, const SessionGrant& grant) {
  // The real, the effective, the saved and the file system's id.
  const auto four_times = [](uint32_t id) {
    const std::string text = "\t" + std::to_string(id);
    return text + text + text + text;
  };
  const std::string none = "\t0000000000000000";
  const std::pair<std::string_view, std::string> wanted[] = {{"Uid:", four_times(*grant.uid)},
                                                             {"Gid:", four_times(grant.gid)},
                                                             {"CapPrm:", none},
                                                             {"CapEff:", none}};
  // The file of a thread that has ended is empty, or not there.
  errno = 0;
  std::ifstream status(path);
  if (!status.is_open()) return errno == ENOENT || errno == ESRCH;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Groups:") && numbers_of(line.substr(7)) != sorted(grant.groups)) {
      return false;
    }
    for (const auto& [name, value] : wanted) {
      if (line.starts_with(name) && line.substr(name.size()) != value) return false;
    }
  }
  return true;
}

// Whether all threads of this process have changed to the user's identity; an error if the threads
// cannot be listed.
Result<bool> all_changed(const SessionGrant& grant) {
  constexpr char kThreads[] = "/proc/self/task";
  DIR* const folder = ::opendir(kThreads);
  if (!folder) return Status::from_errno(errno, "listing the worker's threads in /proc/self/task");
  bool all = true;
  while (const dirent* entry = ::readdir(folder)) {
    if (entry->d_name[0] == '.') continue;
    const std::string status = std::string(kThreads) + "/" + entry->d_name + "/status";
    all = all && is_only(status, grant);
  }
  ::closedir(folder);
  return all;
}

// The C library changes the threads that it knows; any other thread would remain root's. It also
// skips threads that are ending, so this function waits until they have ended.
Status check_threads(const SessionGrant& grant) {
  const auto deadline = std::chrono::steady_clock::now() + kThreadsEnd;
  for (;;) {
    RCUDA_ASSIGN_OR_RETURN(const bool changed, all_changed(grant));
    if (changed) return {};
    if (std::chrono::steady_clock::now() >= deadline) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return Status(Code::kInternal,
                "a thread of the worker did not become user " + grant.user + " in time");
}

// Gives the user the pipes whose two ends are in this process: the driver's pipes. The driver made
// them as root, so they belong to root. But the driver's cuCheckpointProcess* later open them
// through /proc/PID/fd as the user.
void own_pipes(uid_t user, gid_t group) {
  DIR* const folder = ::opendir("/proc/self/fd");
  if (!folder) return;
  struct Ends {
    int reading = -1, writing = -1;
  };
  std::map<std::pair<dev_t, ino_t>, Ends> pipes;
  while (const dirent* const entry = ::readdir(folder)) {
    const int descriptor = std::atoi(entry->d_name);  // 0 for "." and ".."
    struct stat status {};
    if (::fstat(descriptor, &status) != 0 || !S_ISFIFO(status.st_mode)) continue;
    Ends& ends = pipes[{status.st_dev, status.st_ino}];
    const bool reads = (::fcntl(descriptor, F_GETFL) & O_ACCMODE) == O_RDONLY;
    (reads ? ends.reading : ends.writing) = descriptor;
  }
  ::closedir(folder);
  for (const auto& [pipe, ends] : pipes) {
    if (ends.reading >= 0 && ends.writing >= 0) (void)::fchown(ends.reading, user, group);
  }
}

Status become_user(const SessionGrant& grant) {
  if (!grant.uid || *grant.uid == kNobody || grant.gid == kNobody) {
    return Status(Code::kDenied, "user " + grant.user +
                                     " is not known on the server's machine, and a server of "
                                     "root runs each session as its user: create the user there, "
                                     "or start rcuda-server as another user than root");
  }
  // Memory registered with an adapter counts as locked memory. Root may lock any amount, but the
  // user may have a limit.
  const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
  (void)::setrlimit(RLIMIT_MEMLOCK, &unlimited);
  own_pipes(*grant.uid, grant.gid);
  if (::setgroups(grant.groups.size(), grant.groups.data()) != 0) {
    return refusal(grant.user, "setgroups");
  }
  if (::setresgid(grant.gid, grant.gid, grant.gid) != 0) return refusal(grant.user, "setresgid");
  if (::setresuid(*grant.uid, *grant.uid, *grant.uid) != 0) {
    return refusal(grant.user, "setresuid");
  }
  return check_threads(grant);
}

Status limit(int resource, uint64_t most, const char* name) {
  const rlimit both{most, most};
  if (::setrlimit(static_cast<__rlimit_resource_t>(resource), &both) == 0) return {};
  // Without root's rights, a hard limit cannot be raised. The present limit is lower, so it
  // suffices.
  rlimit now{};
  if (errno == EPERM && ::getrlimit(static_cast<__rlimit_resource_t>(resource), &now) == 0 &&
      now.rlim_max <= most) {
    return {};
  }
  return Status::from_errno(errno, std::string("setting the worker's limit ") + name);
}

}  // namespace

Status isolate_worker(const SessionGrant& grant, CallFilter filter) {
  if (::geteuid() == 0 && grant.uid != 0) RCUDA_RETURN_IF_ERROR(become_user(grant));
  // A process that has changed its user is already not dumpable. The call covers the other cases.
  if (!grant.own_user && ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) {
    return Status::from_errno(errno, "making the worker not dumpable (PR_SET_DUMPABLE)");
  }
  RCUDA_RETURN_IF_ERROR(filter_calls(filter));
  RCUDA_RETURN_IF_ERROR(limit(RLIMIT_CORE, 0, "RLIMIT_CORE"));
  if (grant.most_data_bytes) {
    RCUDA_RETURN_IF_ERROR(limit(RLIMIT_DATA, grant.most_data_bytes, "RLIMIT_DATA"));
  }
  if (grant.most_processes) {
    RCUDA_RETURN_IF_ERROR(limit(RLIMIT_NPROC, grant.most_processes, "RLIMIT_NPROC"));
  }
  return {};
}

DumpableScope::DumpableScope() : before_(::prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)) {
  (void)::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

DumpableScope::~DumpableScope() { (void)::prctl(PR_SET_DUMPABLE, before_ == 1, 0, 0, 0); }

Status become_user_of(pid_t process) {
  if (::geteuid() != 0) return {};
  const std::string path = "/proc/" + std::to_string(process) + "/status";
  std::ifstream status(path);
  if (!status.is_open()) return Status::from_errno(errno, "reading " + path);
  SessionGrant grant;
  grant.user = "of process " + std::to_string(process);
  for (std::string line; std::getline(status, line);) {
    const size_t colon = std::min(line.find(':'), line.size() - 1);
    const std::vector<uint32_t> numbers = numbers_of(line.substr(colon + 1));
    if (line.starts_with("Uid:") && !numbers.empty()) grant.uid = numbers.front();
    if (line.starts_with("Gid:") && !numbers.empty()) grant.gid = numbers.front();
    if (line.starts_with("Groups:")) grant.groups = numbers;
  }
  return grant.uid == 0 ? Status() : become_user(grant);
}

}  // namespace rcuda::server
