// CodeFolder: where the driver of root's worker keeps the code that it compiles of PTX.
//
// NVIDIA's driver keeps it in the folder that CUDA_CACHE_PATH names, else in the home folder. A
// worker of root starts its driver before it becomes its session's user. That user can write to
// neither folder, so all PTX would be compiled again in each session. Therefore the variable names
// a descriptor of this process. Until the session begins, it is open on the folder of the server's
// own user, and then on the folder of the session's user (image_folder.h).
//
// Threads: the worker's main thread; open(), before others run. Blocking: for the file system.
// Errors name what is wrong; code is then kept as the driver does it by itself.
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "server/protocol/session_grant.h"

namespace rcuda::server {

class CodeFolder {
 public:
  CodeFolder() = default;  // the driver's own
  // To be called before the driver starts. Changes the environment. Where this process is not
  // root's, or has no folder of its own, it does nothing.
  static Result<CodeFolder> open();

  // From now on the code is kept for this user; to be called before isolate_worker(). `cache`: the
  // daemon's cache folder; empty: none, so only its own user keeps code.
  Status enter(const std::string& cache, const SessionGrant& grant) const;

 private:
  explicit CodeFolder(UniqueFd folder) : folder_(std::move(folder)) {}

  UniqueFd folder_;
};

}  // namespace rcuda::server
