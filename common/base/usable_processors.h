// The number of processors that this process can keep busy. A container or a batch system may give
// a process fewer processors than the machine has: by the process's affinity mask, or by a quota of
// its control groups (cgroup v1 and v2).
//
// Any thread. Errors: none; a limit that cannot be read does not count.
#pragma once

#include <string>
#include <string_view>

namespace rcuda {

// Returns at least 1. A quota of one and a half processors counts as two. The first call reads the
// quota from a few small files of the kernel; each call reads the caller's affinity mask.
unsigned usable_processors();

// Returns the smallest quota of this process's groups and of all groups above them; 0: no quota.
// `groups` is the text of /proc/self/cgroup, which names the process's groups. `mount`: normally
// /sys/fs/cgroup.
unsigned quota_processors(const std::string& mount, std::string_view groups);

}  // namespace rcuda
