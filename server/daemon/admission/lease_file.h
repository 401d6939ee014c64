// The leases of a server in a file, so that they outlive the daemon: a job goes on when the daemon
// is restarted, and its programs may start new sessions.
//
// The file is for this server only (rcuda-lease list shows leases to people). It begins with a line
// that tells its format; the leases follow as a message has them (common/messages/message_codec.h).
// It holds secrets: it is written with mode 600, replaced atomically, and refused when others have
// access to it. Threads: one. Blocking: for the file system. Errors name the file.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "server/daemon/admission/leases.h"
#include "server/protocol/settings.h"

namespace rcuda::server {

// A file that is missing holds no leases.
Result<std::vector<Lease>> load_leases(const std::string& path);
// Makes the folders above the file as well.
Status save_leases(const std::string& path, std::vector<Lease> leases);

// The file of a server with these settings. Empty: its leases are not kept.
std::string leases_path(const Settings& settings);

}  // namespace rcuda::server
