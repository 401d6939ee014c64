#include "server/worker/code_folder.h"

#include <cerrno>
#include <cstdlib>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "common/base/file_cache.h"
#include "server/worker/image_folder.h"

namespace rcuda::server {
namespace {

// Read by NVIDIA's driver.
constexpr char kVariable[] = "CUDA_CACHE_PATH";
constexpr char kBelowHome[] = "/.nv/ComputeCache";

}  // namespace

Result<CodeFolder> CodeFolder::open() {
  const char* const path = std::getenv(kVariable);
  const char* const home = std::getenv("HOME");
  const std::string own = path ? path : home ? std::string(home) + kBelowHome : std::string();
  if (::geteuid() != 0 || !own.starts_with('/')) return CodeFolder();
  Result<UniqueFd> folder = open_cache_directory(own);
  if (!folder.ok()) return folder.status();
  ::setenv(kVariable, ("/proc/self/fd/" + std::to_string(folder->get())).c_str(), 1);
  return CodeFolder(std::move(folder).value());
}

Status CodeFolder::enter(const std::string& cache, const SessionGrant& grant) const {
  if (!folder_ || grant.own_user) return {};
  Result<UniqueFd> folder =
      cache.empty() ? Result<UniqueFd>(UniqueFd()) : open_code_folder(cache, grant);
  const Status status = folder.status();
  // Not the folder of another user in any case.
  if (!status.ok() || !*folder) folder = UniqueFd(::open("/dev/null", O_PATH | O_CLOEXEC));
  if (::dup3(folder->get(), folder_.get(), O_CLOEXEC) < 0) {
    return Status::from_errno(errno, "the folder of compiled PTX");
  }
  return status;
}

}  // namespace rcuda::server
