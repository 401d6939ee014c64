// The leases of a server in a text file, so that they outlive the daemon: a job goes on when the
// daemon is restarted, and its programs may start new sessions.
//
//   # comment
//   <id> <secret in hex> <exclusive or shared> <devices> <created> <until, or never> <uid, or ->
//     <user, or -> <creator, without spaces> <job>          (in one line)
//
// For an oversubscribed lease, ",oversubscribed" follows "exclusive" or "shared". A name of a user
// or creator that consists of dashes has one dash more in the file, because "-" stands for no name.
// Times are in UTC, 2025-01-31T12:00:00Z. The job is the rest of the line and may be empty. The
// file holds secrets: it is written with mode 600, replaced atomically, and refused when other
// users have access to it.
//
// Threads: one. Blocking: for the file system. Errors name the file and the line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "server/daemon/admission/leases.h"
#include "server/protocol/settings.h"

namespace rcuda::server {

Result<std::vector<Lease>> parse_leases(std::string_view text);
std::string format_leases(const std::vector<Lease>& leases);

// A file that is missing holds no leases.
Result<std::vector<Lease>> load_leases(const std::string& path);
// Makes the folders above the file as well.
Status save_leases(const std::string& path, const std::vector<Lease>& leases);

// The file of a server with these settings. Empty: its leases are not saved.
std::string leases_path(const Settings& settings);

}  // namespace rcuda::server
