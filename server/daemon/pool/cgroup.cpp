#include "server/daemon/pool/cgroup.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file_io.h"
#include "common/base/log.h"
#include "common/base/unique_fd.h"

namespace rcuda::server {
namespace {

constexpr const char* kControllers[] = {"memory", "pids", "cpu"};
constexpr char kDaemon[] = "/daemon";
constexpr char kWorker[] = "worker-";

Status write_file(const std::string& path, const std::string& text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) {
    return {};
  }
  return Status::from_errno(errno, "writing \"" + text + "\" to " + path);
}

std::vector<std::string> words_of(std::string_view text) {
  std::istringstream stream{std::string(text)};
  return {std::istream_iterator<std::string>(stream), {}};
}

// Whether `path` is `folder` or below it.
bool is_below(std::string_view path, std::string_view folder) {
  return folder == "/" ||
         (path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/'));
}

// mountinfo writes a space as \040.
std::string unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out += static_cast<char>(std::strtol(text.substr(i + 1, 3).c_str(), nullptr, 8));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool is_this_process(const std::string& pid) { return pid == std::to_string(::getpid()); }

}  // namespace

OutOfMemory parse_memory_events(std::string_view text) {
  OutOfMemory events;
  const std::vector<std::string> words = words_of(text);
  for (size_t i = 0; i + 1 < words.size(); i += 2) {
    const uint64_t count = std::strtoull(words[i + 1].c_str(), nullptr, 10);
    if (words[i] == "oom_kill") events.kills = count;
    if (words[i] == "oom") events.limit_hits = count;
  }
  return events;
}

Result<std::string> own_cgroup(std::string_view cgroup, std::string_view mountinfo) {
  std::string group;
  std::istringstream groups{std::string(cgroup)};
  for (std::string line; std::getline(groups, line);) {
    if (line.starts_with("0::/")) group = line.substr(3);
  }
  if (group.empty()) return Status(Code::kUnsupported, "this machine has no cgroup v2");
  std::istringstream mounts{std::string(mountinfo)};
  for (std::string line; std::getline(mounts, line);) {
    // 31 24 0:27 ROOT POINT options [optional fields] - TYPE ...
    const std::vector<std::string> words = words_of(line);
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 2 || dash[1] != "cgroup2") continue;
    const std::string root = unescape(words[3]);
    if (!is_below(group, root) || group.starts_with("/..")) continue;
    std::string below = root == "/" ? group : group.substr(root.size());
    if (below == "/") below.clear();
    return unescape(words[4]) + below;
  }
  return Status(Code::kUnsupported,
                "cgroup v2 is not mounted where this process can see its own group");
}

WorkerCgroup::~WorkerCgroup() { owner_.remove(path_); }

Status WorkerCgroup::limit(const CgroupLimits& limits) {
  if (limits.memory_bytes && owner_.has("memory")) {
    RCUDA_RETURN_IF_ERROR(write_file(path_ + "/memory.max", std::to_string(limits.memory_bytes)));
    // Otherwise the session would go on in swap, which slows down the whole machine.
    if (::access((path_ + "/memory.swap.max").c_str(), F_OK) == 0) {
      RCUDA_RETURN_IF_ERROR(write_file(path_ + "/memory.swap.max", "0"));
    }
  }
  if (limits.processes && owner_.has("pids")) {
    RCUDA_RETURN_IF_ERROR(write_file(path_ + "/pids.max", std::to_string(limits.processes)));
  }
  if (limits.cpu_weight && owner_.has("cpu")) {
    RCUDA_RETURN_IF_ERROR(write_file(path_ + "/cpu.weight", std::to_string(limits.cpu_weight)));
  }
  return {};
}

Status WorkerCgroup::add_memory(int64_t bytes) {
  const std::string file = path_ + "/memory.max";
  const int64_t now = std::strtoll(read_text(file).c_str(), nullptr, 10);
  return now > 0 ? write_file(file, std::to_string(now + bytes)) : Status();  // "max" reads as 0
}

OutOfMemory WorkerCgroup::out_of_memory() const {
  return parse_memory_events(read_text(path_ + "/memory.events"));
}

Result<std::unique_ptr<Cgroups>> Cgroups::open(const std::string& choice) {
  std::string path = choice;
  if (choice == "auto") {
    RCUDA_ASSIGN_OR_RETURN(
        path, own_cgroup(read_text("/proc/self/cgroup"), read_text("/proc/self/mountinfo")));
  }
  std::unique_ptr<Cgroups> groups(new Cgroups(path));
  RCUDA_RETURN_IF_ERROR(groups->find_controllers());
  RCUDA_RETURN_IF_ERROR(choice == "auto" ? groups->enter_daemon_cgroup() : groups->check_empty());
  if (Status status = groups->enable(); !status.ok()) {
    groups->leave_daemon_cgroup();
    return status;
  }
  groups->remove_leftovers();
  return groups;
}

Status Cgroups::check(const std::string& path) {
  Cgroups groups(path);
  RCUDA_RETURN_IF_ERROR(groups.find_controllers());
  RCUDA_RETURN_IF_ERROR(groups.check_empty());
  const std::string control = path + "/cgroup.subtree_control";
  if (::access(control.c_str(), W_OK) == 0) return {};
  return Status::from_errno(errno, "writing " + control);
}

Status Cgroups::find_controllers() {
  for (const std::string& name : words_of(read_text(path_ + "/cgroup.controllers"))) {
    if (std::find(std::begin(kControllers), std::end(kControllers), name) !=
        std::end(kControllers)) {
      controllers_.push_back(name);
    }
  }
  if (!controllers_.empty()) return {};
  return Status(Code::kUnsupported, "the cgroup " + path_ +
                                        " has none of the controllers memory, pids and cpu: "
                                        "enable them in cgroup.subtree_control of its parent");
}

Status Cgroups::check_empty() const {
  if (read_text(path_ + "/cgroup.procs").empty()) return {};
  return Status(
      Code::kInvalidArgument,
      "the cgroup " + path_ +
          " contains processes, but no process may be in a cgroup whose children have limits: "
          "name an empty cgroup");
}

std::unique_ptr<Cgroups> Cgroups::restore(const CarriedCgroups& carried) {
  std::unique_ptr<Cgroups> groups(new Cgroups(carried.path));
  groups->in_daemon_cgroup_ = carried.in_daemon_cgroup;
  groups->controllers_ = carried.controllers;
  return groups;
}

std::unique_ptr<WorkerCgroup> Cgroups::of(pid_t worker) {
  return std::unique_ptr<WorkerCgroup>(
      new WorkerCgroup(*this, path_ + "/" + kWorker + std::to_string(worker)));
}

Cgroups::~Cgroups() { leave_daemon_cgroup(); }

Status Cgroups::enter_daemon_cgroup() {
  const std::vector<std::string> inside = words_of(read_text(path_ + "/cgroup.procs"));
  if (!std::all_of(inside.begin(), inside.end(), is_this_process)) {
    return Status(Code::kUnsupported,
                  "the cgroup " + path_ + " also contains processes that are not of this server");
  }
  const std::string leaf = path_ + kDaemon;
  if (::mkdir(leaf.c_str(), 0755) != 0 && errno != EEXIST) {
    return Status::from_errno(errno, "making " + leaf);
  }
  in_daemon_cgroup_ = true;
  Status moved = write_file(leaf + "/cgroup.procs", std::to_string(::getpid()));
  if (!moved.ok()) leave_daemon_cgroup();
  return moved;
}

void Cgroups::leave_daemon_cgroup() {
  if (!in_daemon_cgroup_) return;
  in_daemon_cgroup_ = false;
  // The kernel lets processes into the group again only when its children have no controllers.
  for (const std::string& name : controllers_) {
    (void)write_file(path_ + "/cgroup.subtree_control", "-" + name);
  }
  // Waits for helpers of the daemon that are still ending.
  const std::string leaf = path_ + kDaemon;
  const auto inside = [&] { return words_of(read_text(leaf + "/cgroup.procs")); };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (inside().size() > 1 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const std::string& process : inside()) (void)write_file(path_ + "/cgroup.procs", process);
  ::rmdir(leaf.c_str());
}

Status Cgroups::enable() {
  std::vector<std::string> enabled;
  Status last;
  for (const std::string& name : controllers_) {
    Status status = write_file(path_ + "/cgroup.subtree_control", "+" + name);
    if (status.ok()) {
      enabled.push_back(name);
    } else {
      last = std::move(status);
    }
  }
  if (enabled.empty()) return last;
  controllers_ = std::move(enabled);
  return {};
}

Result<std::unique_ptr<WorkerCgroup>> Cgroups::make(pid_t worker) {
  std::erase_if(busy_, [](const std::string& group) {
    return ::rmdir(group.c_str()) == 0 || errno == ENOENT;
  });
  const std::string path = path_ + "/" + kWorker + std::to_string(worker);
  if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) {
    return Status::from_errno(errno, "making " + path);
  }
  std::unique_ptr<WorkerCgroup> group(new WorkerCgroup(*this, path));
  RCUDA_RETURN_IF_ERROR(write_file(path + "/cgroup.procs", std::to_string(worker)));
  return group;
}

bool Cgroups::has(std::string_view controller) const {
  return std::find(controllers_.begin(), controllers_.end(), controller) != controllers_.end();
}

std::string Cgroups::text() const {
  std::string text = path_ + ":";
  for (const std::string& name : controllers_) text += " " + name;
  return text;
}

void Cgroups::remove(const std::string& group) {
  if (::rmdir(group.c_str()) == 0 || errno == ENOENT) return;
  // Linux before 5.14 has no cgroup.kill.
  if (!write_file(group + "/cgroup.kill", "1").ok()) {
    for (const std::string& pid : words_of(read_text(group + "/cgroup.procs"))) {
      if (!is_this_process(pid)) ::kill(static_cast<pid_t>(std::atoi(pid.c_str())), SIGKILL);
    }
  }
  if (::rmdir(group.c_str()) != 0 && errno != ENOENT) busy_.push_back(group);
}

void Cgroups::remove_leftovers() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path_, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kWorker)) continue;
    RCUDA_DEBUG("removing %s, which an earlier server left behind", entry.path().c_str());
    remove(entry.path().string());
  }
}

}  // namespace rcuda::server
