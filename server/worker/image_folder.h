// The folder in which the images of a session's modules are kept.
//
// Sessions of the daemon's own user use the daemon's cache folder itself. Every other user has a
// folder below it: users/1000 for a user of this machine, users/name-HASH for one that is known by
// name only. A worker opens it while it is still root and owns nothing else of the cache later. So
// no user can read or change what another one's sessions load, nor find out whether others have
// loaded the same code. The code that the driver compiles of PTX is beside it, in ptx/1000 and so
// on, except that of the daemon's own user. (Rejected: one folder of all users, from which the
// daemon passes opened files. Every image would pass through the daemon's thread, which must not
// hash or write gigabytes, and a quick answer would tell a user what others have loaded.)
//
// Threads: any. Blocking: for the file system. Errors name the folder and what is wrong with it.
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "server/protocol/session_grant.h"

namespace rcuda::server {

// Makes and opens the folder; to be called before isolate_worker(). `cache`: the daemon's cache
// folder.
Result<UniqueFd> open_image_folder(const std::string& cache, const SessionGrant& grant);
// The same for compiled code, of a user who is not the daemon's own.
Result<UniqueFd> open_code_folder(const std::string& cache, const SessionGrant& grant);

}  // namespace rcuda::server
