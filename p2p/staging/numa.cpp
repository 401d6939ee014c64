#include "p2p/staging/numa.h"

#include <charconv>

#include <pthread.h>
#include <sched.h>

#include "common/base/file_io.h"

namespace rcuda::p2p {
namespace {

// Parses a list such as "0-3,8,10-11". Returns false if it is malformed or empty.
bool parse_cpu_list(const std::string& text, cpu_set_t& set) {
  CPU_ZERO(&set);
  bool any = false;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    unsigned first = 0;
    auto [after, error] = std::from_chars(at, end, first);
    if (error != std::errc()) return false;
    unsigned last = first;
    if (after < end && *after == '-') {
      const auto range = std::from_chars(after + 1, end, last);
      if (range.ec != std::errc()) return false;
      after = range.ptr;
    }
    for (unsigned cpu = first; cpu <= last && cpu < CPU_SETSIZE; ++cpu) {
      CPU_SET(cpu, &set);
      any = true;
    }
    at = after;
    if (at < end && *at == ',') ++at;
  }
  return any;
}

}  // namespace

bool run_on_numa_node(int node, const std::string& sysfs) {
  if (node < 0) return false;
  const std::string list =
      read_line(sysfs + "/devices/system/node/node" + std::to_string(node) + "/cpulist");
  cpu_set_t wanted;
  if (!parse_cpu_list(list, wanted)) return false;
  // Use only the CPUs that the administrator (taskset, cgroup) allows this process.
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed) != 0) return false;
  cpu_set_t both;
  CPU_AND(&both, &wanted, &allowed);
  if (CPU_COUNT(&both) == 0) return false;
  return pthread_setaffinity_np(pthread_self(), sizeof both, &both) == 0;
}

}  // namespace rcuda::p2p
