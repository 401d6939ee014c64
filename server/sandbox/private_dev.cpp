#include "server/sandbox/private_dev.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <string_view>

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/unique_fd.h"
#include "server/sandbox/device_scope.h"

namespace rcuda::server {
namespace {

// Nodes and folders that do not belong to one GPU. nvidia-caps is for GPUs in parts (MIG), dxg for
// GPUs of a Windows host; nvmap and names that begin with nvhost are Jetson's.
constexpr std::string_view kShared[] = {"null",
                                        "zero",
                                        "full",
                                        "random",
                                        "urandom",
                                        "shm",
                                        "infiniband",
                                        "nvidiactl",
                                        "nvidia-uvm",
                                        "nvidia-uvm-tools",
                                        "nvidia-caps",
                                        "nvmap",
                                        "nvidia-modeset",
                                        "nvidia-caps-imex-channels",
                                        "dxg"};
constexpr std::string_view kSharedPrefix = "nvhost";

constexpr std::pair<const char*, const char*> kLinks[] = {{"/proc/self/fd", "/dev/fd"},
                                                          {"/proc/self/fd/0", "/dev/stdin"},
                                                          {"/proc/self/fd/1", "/dev/stdout"},
                                                          {"/proc/self/fd/2", "/dev/stderr"}};

Status failed(const std::string& call) { return Status::from_errno(errno, call); }

bool is_wanted(const std::string& name, const std::vector<std::string>& gpus) {
  return std::find(std::begin(kShared), std::end(kShared), name) != std::end(kShared) ||
         name.starts_with(kSharedPrefix) || std::find(gpus.begin(), gpus.end(), name) != gpus.end();
}

// Shows the node or folder `name` of the former /dev in the present one.
Status show(int former, const std::string& name) {
  struct stat status;
  if (::fstatat(former, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return failed("looking at /dev/" + name);
  }
  const std::string target = "/dev/" + name;
  if (S_ISDIR(status.st_mode)) {
    if (::mkdir(target.c_str(), 0755) != 0) return failed("making " + target);
  } else if (S_ISCHR(status.st_mode)) {
    const UniqueFd file(::open(target.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file) return failed("making " + target);
  } else {
    return {};
  }
  const std::string source = "/proc/self/fd/" + std::to_string(former) + "/" + name;
  if (::mount(source.c_str(), target.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) {
    return failed("mounting " + target);
  }
  return {};
}

Status fill(int former, const std::vector<std::string>& gpus) {
  UniqueFd listed(::openat(former, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR* const folder = listed ? ::fdopendir(listed.get()) : nullptr;
  if (!folder) return failed("listing /dev");
  (void)listed.release();  // closed by closedir()
  Status status;
  while (const dirent* entry = ::readdir(folder)) {
    if (status.ok() && is_wanted(entry->d_name, gpus)) status = show(former, entry->d_name);
  }
  ::closedir(folder);
  RCUDA_RETURN_IF_ERROR(status);
  for (const auto& [target, link] : kLinks) {
    if (::symlink(target, link) != 0) return failed(link);
  }
  // So that a driver that runs as root cannot make the node of another GPU.
  if (::mount(nullptr, "/dev", nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NOEXEC,
              nullptr) != 0) {
    return failed("mounting /dev read-only");
  }
  return {};
}

}  // namespace

Status make_private_dev(const std::vector<std::string>& gpus) {
  if (::unshare(CLONE_NEWNS) != 0) return failed("unshare");
  // What is unmounted outside is unmounted here as well; nothing of this is seen outside.
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) return failed("mount");
  const UniqueFd former(::open("/dev", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!former) return failed("opening /dev");
  if (::mount("tmpfs", "/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=64k") != 0) {
    return failed("mounting a tmpfs");
  }
  Status status = fill(former.get(), gpus);
  if (!status.ok()) ::umount2("/dev", MNT_DETACH);
  return status;
}

}  // namespace rcuda::server
