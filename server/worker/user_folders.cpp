#include "server/worker/user_folders.h"

#include <cerrno>
#include <cstdlib>
#include <span>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/identity/encoding.h"
#include "server/executor/images/image_cache.h"

namespace rcuda::server {
namespace {

// Read by NVIDIA's driver.
constexpr char kVariable[] = "CUDA_CACHE_PATH";
constexpr char kBelowHome[] = "/.nv/ComputeCache";
constexpr size_t kNameDigits = 32;  // of the hash, in hexadecimal

std::string folder_name(const SessionGrant& grant) {
  if (grant.uid) return std::to_string(*grant.uid);
  return "name-" +
         identity::to_hex(sha256(std::as_bytes(std::span(grant.user)))).substr(0, kNameDigits);
}

Status wrong(const std::string& path) { return Status::from_errno(errno, path); }

// `own`: a descriptor of the cache folder `cache`. `folders`: the name of the folder in it that has
// a folder for each user.
Result<UniqueFd> open_user_folder(int own, const std::string& cache, const std::string& folders,
                                  const SessionGrant& grant) {
  const uid_t owner = ::geteuid() == 0 ? grant.uid.value_or(0) : ::geteuid();
  // Only this process's user can write to the cache folder and to `folders`, so no other user can
  // have put a link there.
  ::mkdirat(own, folders.c_str(), 0700);
  const std::string path = folders + "/" + folder_name(grant);
  const std::string whole = cache + "/" + path;
  if (::mkdirat(own, path.c_str(), 0700) != 0 && errno != EEXIST) return wrong(whole);
  // O_PATH: root without CAP_DAC_OVERRIDE cannot open the folder for reading; the user can.
  UniqueFd folder(::openat(own, path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status;
  if (!folder || ::fstat(folder.get(), &status) != 0) return wrong(whole);
  if (status.st_uid != owner) {
    // A new folder belongs to this process's user.
    if (status.st_uid != ::geteuid() ||
        ::fchownat(folder.get(), "", owner, grant.gid, AT_EMPTY_PATH) != 0) {
      return Status(Code::kInvalidArgument, whole + " belongs to uid " +
                                                std::to_string(status.st_uid) + " and not to " +
                                                grant.user + ": remove it");
    }
  }
  if ((status.st_mode & 077) != 0) {
    return Status(Code::kInvalidArgument, whole + " is open to other users: run chmod 700 on it");
  }
  return folder;
}

// Opens the folder for compiled PTX of the session's user, which differs from the daemon's user.
Result<UniqueFd> open_code_folder(const std::string& cache, const SessionGrant& grant) {
  Result<UniqueFd> own = open_cache_directory(cache);
  if (!own.ok()) return own;
  return open_user_folder(own->get(), cache, "ptx", grant);
}

}  // namespace

Result<UniqueFd> open_image_folder(const std::string& cache, const SessionGrant& grant) {
  Result<UniqueFd> own = open_cache_directory(cache);
  if (!own.ok() || grant.own_user) return own;
  return open_user_folder(own->get(), cache, "users", grant);
}

Result<CodeFolder> CodeFolder::open() {
  const char* const path = std::getenv(kVariable);
  const char* const home = std::getenv("HOME");
  const std::string own = path ? path : home ? std::string(home) + kBelowHome : std::string();
  if (::geteuid() != 0 || !own.starts_with('/')) return CodeFolder();
  RCUDA_ASSIGN_OR_RETURN(UniqueFd folder, open_cache_directory(own));
  ::setenv(kVariable, ("/proc/self/fd/" + std::to_string(folder.get())).c_str(), 1);
  return CodeFolder(std::move(folder));
}

Status CodeFolder::enter(const std::string& cache, const SessionGrant& grant) const {
  if (!folder_ || grant.own_user) return {};
  Result<UniqueFd> folder =
      cache.empty() ? Result<UniqueFd>(UniqueFd()) : open_code_folder(cache, grant);
  const Status status = folder.status();
  // After a failure the driver must not use the folder of another user, so it gets no folder.
  if (!status.ok() || !*folder) folder = UniqueFd(::open("/dev/null", O_PATH | O_CLOEXEC));
  if (::dup3(folder->get(), folder_.get(), O_CLOEXEC) < 0) {
    return Status::from_errno(errno, "passing the folder of compiled PTX to the driver");
  }
  return status;
}

}  // namespace rcuda::server
