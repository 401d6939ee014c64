// Control groups (cgroup v2) for workers: limits of memory, processes and processor time that the
// kernel enforces for a session as a whole.
//
//   <own>/daemon        the daemon, which moves itself there: a group whose children have
//                       controllers may hold no processes
//   <own>/worker-PID    a worker, from its start until it has been reaped
//
// <own> is the group in which this process was started. It must be delegated to the process, as
// systemd does for a unit with Delegate=yes. The group counts as delegated if the process can write
// to it and no other process is in it. Groups that an earlier server left in <own> are emptied and
// removed.
//
// Threads: the daemon's. Blocking: only for the kernel, which keeps these files in memory.
// ~Cgroups(), and an open() that fails, also wait up to a second for helpers that are ending.
// Errors: Cgroups::open() returns the reason why there are no groups; later errors name the file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "common/base/status.h"
#include "server/daemon/carried/carried_state.h"

namespace rcuda::server {

// Limits of a session; 0 means none.
struct CgroupLimits {
  uint64_t memory_bytes = 0;
  uint64_t processes = 0;  // threads included
  uint64_t cpu_weight = 0;
};

// What the group's memory.events reports about a lack of memory.
struct OutOfMemory {
  uint64_t kills = 0;       // processes that the kernel has killed
  uint64_t limit_hits = 0;  // allocations that failed because of the group's own limit
};
OutOfMemory parse_memory_events(std::string_view text);

// The path of this process's group, from the texts of /proc/self/cgroup and /proc/self/mountinfo.
// kUnsupported without a mounted cgroup v2, or if the group is not below the mount.
Result<std::string> own_cgroup(std::string_view cgroup, std::string_view mountinfo);

class Cgroups;

// The group of one worker. The destructor kills the processes that are left in it and removes it.
class WorkerCgroup {
 public:
  ~WorkerCgroup();
  WorkerCgroup(const WorkerCgroup&) = delete;
  WorkerCgroup& operator=(const WorkerCgroup&) = delete;

  // Skips limits whose controller is missing (Cgroups::has()).
  Status limit(const CgroupLimits& limits);
  // Adds `bytes`, which may be negative, to the limit of the memory, if there is one.
  Status add_memory(int64_t bytes);
  OutOfMemory out_of_memory() const;
  const std::string& path() const { return path_; }

 private:
  friend class Cgroups;
  WorkerCgroup(Cgroups& owner, std::string path) : owner_(owner), path_(std::move(path)) {}

  Cgroups& owner_;
  const std::string path_;
};

class Cgroups {
 public:
  // `choice`: "auto", or the path of a group that is prepared for this server. With a path, this
  // process stays in its own group.
  static Result<std::unique_ptr<Cgroups>> open(const std::string& choice);
  // Whether open() accepts a group that is named by its path. Changes nothing.
  static Status check(const std::string& path);
  // Moves this process back to <own>, so that another server can start there.
  ~Cgroups();

  // For a successor (successor.h), which continues with the same groups.
  CarriedCgroups carry() const { return {path_, in_daemon_cgroup_, controllers_}; }
  static std::unique_ptr<Cgroups> restore(const CarriedCgroups& carried);
  // The group that make() made for the worker in the earlier build.
  std::unique_ptr<WorkerCgroup> of(pid_t worker);

  // Makes the group of a worker and moves the process into it. This object outlives the group.
  Result<std::unique_ptr<WorkerCgroup>> make(pid_t worker);
  // `controller`: "memory", "pids" or "cpu".
  bool has(std::string_view controller) const;
  std::string text() const;  // "/sys/fs/cgroup/...: memory pids cpu"

 private:
  friend class WorkerCgroup;
  explicit Cgroups(std::string path) : path_(std::move(path)) {}
  Status find_controllers();
  Status check_empty() const;
  Status enter_daemon_cgroup();  // makes <own>/daemon
  void leave_daemon_cgroup();
  Status enable();
  void remove(const std::string& group);
  void remove_leftovers();

  const std::string path_;
  bool in_daemon_cgroup_ = false;
  std::vector<std::string> controllers_;
  std::vector<std::string> busy_;  // groups whose processes are still ending
};

}  // namespace rcuda::server
