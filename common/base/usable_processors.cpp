#include "common/base/usable_processors.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include <sched.h>

#include "common/base/proc_self.h"

namespace rcuda {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Rounded up. 0: the group has no quota, or the text is malformed ("max 100000", "-1").
unsigned quota_of(const std::string& quota_and_period) {
  std::istringstream words(quota_and_period);
  long long quota = 0, period = 0;
  if (!(words >> quota >> period) || quota <= 0 || period <= 0) return 0;
  return static_cast<unsigned>((quota + period - 1) / period);
}

unsigned smaller_quota(unsigned one, unsigned other) {
  return one == 0 || other == 0 ? std::max(one, other) : std::min(one, other);
}

// Of the group, a path, and all above it. A container may see only the last part of the path, as
// the mount's root.
unsigned quota_along(const std::string& mount, std::string group, bool is_v2) {
  for (unsigned least = 0;; group.resize(group.rfind('/'))) {
    if (group == "/") group.clear();
    const std::string folder = mount + group;
    least = smaller_quota(least, quota_of(is_v2 ? read_file(folder + "/cpu.max")
                                                : read_file(folder + "/cpu.cfs_quota_us") + " " +
                                                      read_file(folder + "/cpu.cfs_period_us")));
    if (group.empty()) return least;
  }
}

// Of the affinity mask. Machines may have more processors than a cpu_set_t.
unsigned allowed_processors() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
  return std::thread::hardware_concurrency();
}

}  // namespace

unsigned quota_processors(const std::string& mount, std::string_view groups) {
  unsigned least = 0;
  std::istringstream lines{std::string(groups)};
  for (std::string line; std::getline(lines, line);) {
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
  const unsigned quota = quota_processors("/sys/fs/cgroup", read_file(proc_self("cgroup")));
  return std::max(smaller_quota(allowed_processors(), quota), 1u);
}

}  // namespace rcuda
