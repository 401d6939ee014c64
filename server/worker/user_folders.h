// The folders of a session's user: for the images of modules, and for the code that the driver
// compiles from PTX.
//
// Sessions of the daemon's own user use the daemon's cache folder itself. Every other user has a
// folder below it: users/1000 for a user of this machine, users/name-HASH for a user that is known
// by name only. A worker opens the user's folder while the worker is still root. Later it has no
// access to the rest of the cache. So no user can read or change the code of other users' sessions,
// nor find out whether they have loaded the same code. Compiled code has its own folders in the
// cache, ptx/1000 and so on, except that of the daemon's own user. (Rejected: one folder of all
// users, from which the daemon passes opened files. Every image would pass through the daemon's
// thread, which must not hash or write gigabytes, and a quick answer would show a user that others
// have loaded the same code.)
//
// Threads: any; CodeFolder: the worker's main thread. Blocking: for the file system. Errors name
// the folder and the problem. If CodeFolder::open() fails, the driver chooses its own folder; if
// enter() fails, the driver keeps no compiled code.
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "server/protocol/session_grant.h"

namespace rcuda::server {

// Makes and opens the folder; to be called before isolate_worker() (isolation.h). `cache`: the
// daemon's cache folder.
Result<UniqueFd> open_image_folder(const std::string& cache, const SessionGrant& grant);

// CodeFolder: where the driver of root's worker keeps the code that it compiles from PTX.
//
// NVIDIA's driver keeps this code in the folder that CUDA_CACHE_PATH names, otherwise in the home
// folder. A worker of root starts its driver before it becomes its session's user. That user can
// write to neither folder, so all PTX would be compiled again in each session. Therefore the
// variable names a descriptor of this process. The descriptor is open on the folder of the server's
// own user until the session begins, and then on the folder of the session's user.
class CodeFolder {
 public:
  CodeFolder() = default;  // the driver chooses the folder
  // Call it before the driver starts. Changes the environment. Does nothing if this process is not
  // root's or has no folder of its own.
  static Result<CodeFolder> open();

  // From this call on, the driver keeps the code in the folder of the session's user. Call it
  // before isolate_worker(). `cache`: the daemon's cache folder; empty: none, and code is kept only
  // for the daemon's own user.
  Status enter(const std::string& cache, const SessionGrant& grant) const;

 private:
  explicit CodeFolder(UniqueFd folder) : folder_(std::move(folder)) {}

  UniqueFd folder_;
};

}  // namespace rcuda::server
