#include "common/base/usable_processors.h"

#include <algorithm>
#include <cstdio>
#include <thread>

#include <sched.h>

#include "common/base/file_io.h"
#include "common/base/proc_self.h"

namespace rcuda {
namespace {

// Returns the quota in processors, rounded up. Returns 0 if the group has no quota ("max 100000",
// "-1 100000") or the text is malformed.
unsigned quota_of(const std::string& quota_and_period) {
  long long quota = 0, period = 0;
  if (std::sscanf(quota_and_period.c_str(), "%lld %lld", &quota, &period) != 2) return 0;
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<unsigned>((quota + period - 1) / period);
}

unsigned smaller_quota(unsigned one, unsigned other) {
  return one == 0 || other == 0 ? std::max(one, other) : std::min(one, other);
}

// Returns the smallest quota of `group` (a path) and of the groups above it. In a container,
// `group` may be the path on the host, while `mount` itself has the files of the container's group.
// The other folders are then missing, which counts as no quota.
unsigned quota_along(const std::string& mount, std::string group, bool is_v2) {
  for (unsigned least = 0;; group.resize(group.rfind('/'))) {
    if (group == "/") group.clear();
    const std::string folder = mount + group;
    least = smaller_quota(least, quota_of(is_v2 ? read_text(folder + "/cpu.max")
                                                : read_text(folder + "/cpu.cfs_quota_us") + " " +
                                                      read_text(folder + "/cpu.cfs_period_us")));
    if (group.empty()) return least;
  }
}

// Returns the number of processors of the affinity mask. sched_getaffinity() fails on a machine
// with more processors than a cpu_set_t has bits.
unsigned allowed_processors() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
  return std::thread::hardware_concurrency();
}

}  // namespace

unsigned quota_processors(const std::string& mount, std::string_view groups) {
  unsigned least = 0;
  while (!groups.empty()) {
    const std::string line(groups.substr(0, groups.find('\n')));
    groups.remove_prefix(std::min(groups.size(), line.size() + 1));
    // 0::/PATH of v2; 4:cpu,cpuacct:/PATH of v1
    const size_t first = line.find(':'), second = line.find(":/", first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (line.starts_with("0::")) {
      least = smaller_quota(least, quota_along(mount, group, true));
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      least = smaller_quota(least, quota_along(mount + "/" + controllers, group, false));
    }
  }
  return least;
}

unsigned usable_processors() {
  static const unsigned quota = quota_processors("/sys/fs/cgroup", read_text(proc_self("cgroup")));
  return std::max(smaller_quota(allowed_processors(), quota), 1u);
}

}  // namespace rcuda
