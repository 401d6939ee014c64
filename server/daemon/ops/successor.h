// The successor: another build of the server's binary, which the daemon executes in its own
// process. The server's sessions go on. When an upgrade of the package has replaced the binary's
// file, the next reload executes the new file.
//
//   old build   find_successor(), then check_successor(): the new build reads the settings and the
//               state that the old build carries (carried_state.h), and reports whether it
//               understands both
//               waits until no client connects or waits for a session
//               check_successor() again, execute_successor(). This ends the daemon's other threads,
//               with their look-ups of users and checks of credentials
//   new build   take_carried() at its start; the daemon restores this state
//
// Threads: the daemon's main thread. Blocking: check_successor(), until the new build has read its
// settings, for kLongestCheck at most. Errors: check_successor() names the binary and the remedy;
// the others return the system's.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "server/daemon/carried/carried_state.h"

namespace rcuda::server {

// The hidden option with which check_successor() starts the new build; its value is the descriptor
// of the state. The build exits with 0 if it can take over, with kOtherLayout if it does not
// understand the state, and with another status if the settings are not usable.
inline constexpr char kCarriesOption[] = "--carries";
inline constexpr int kOtherLayout = 3;
inline constexpr std::chrono::seconds kLongestCheck{30};

// Identifies a file independently of its name. file_id() returns nothing if there is no such file.
struct FileId {
  uint64_t device = 0, inode = 0;
  bool operator==(const FileId&) const = default;
};
std::optional<FileId> file_id(const std::string& path);
// Returns the file at that path, unless this process executes that file.
std::optional<FileId> find_successor(const std::string& binary);
// `argv`: of this process.
Status check_successor(const std::string& binary, char* const* argv, const CarriedState& state);
// Returns only if the execution fails; then the daemon can go on.
Status execute_successor(const std::string& binary, char* const* argv, const CarriedState& state);
// Returns the state that an earlier build in this process has carried, if there was such a build.
// Call it once, before the process starts other processes.
Result<std::optional<CarriedState>> take_carried();

// Whether a thread of this process is in an uninterruptible wait, perhaps in a driver. execve()
// would wait for this thread.
bool has_stuck_thread();

}  // namespace rcuda::server
