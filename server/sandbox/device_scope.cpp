#include "server/sandbox/device_scope.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/lower.h"
#include "common/base/unique_fd.h"

namespace rcuda::server {
namespace {

constexpr std::string_view kGpuNode = "nvidia";
constexpr char kNoNode[] = "-";

// Nodes and folders that do not belong to one GPU. nvidia-caps is for partitions of GPUs (MIG), dxg
// for GPUs of a Windows host; nvmap and names that begin with nvhost are Jetson's.
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

// Makes the node or folder `name` of the former /dev visible in the new /dev.
Status show(int former, const std::string& name) {
  struct stat status;
  if (::fstatat(former, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return failed("reading the properties of /dev/" + name);
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
    if (::symlink(target, link) != 0) return failed(std::string("making the link ") + link);
  }
  // Read-only, so that a driver that runs as root cannot make the node of another GPU.
  if (::mount(nullptr, "/dev", nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NOEXEC,
              nullptr) != 0) {
    return failed("mounting /dev read-only");
  }
  return {};
}

}  // namespace

// The format is: 2 GPU-... nvidia2,3 GPU-... -
std::string text_of(const DeviceScope& scope) {
  std::string text;
  for (const DeviceScope::Device& device : scope.devices) {
    if (!text.empty()) text += ',';
    text += std::to_string(device.ordinal) + ' ' + device.uuid + ' ' +
            (device.node.empty() ? kNoNode : device.node);
  }
  return text;
}

Result<DeviceScope> parse_scope(const std::string& text) {
  DeviceScope scope;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    std::istringstream words(item);
    DeviceScope::Device device;
    std::string rest;
    if (!(words >> device.ordinal >> device.uuid >> device.node) || words >> rest) {
      return Status(Code::kInvalidArgument,
                    std::string(kScopeVariable) + " is malformed: \"" + item + "\"");
    }
    if (device.node == kNoNode) device.node.clear();
    if (!device.node.empty() && !is_gpu_node(device.node)) {
      return Status(
          Code::kInvalidArgument,
          std::string(kScopeVariable) + " does not name the node of a GPU: \"" + item + "\"");
    }
    scope.devices.push_back(std::move(device));
  }
  return scope;
}

std::string node_of(const std::string& pci_bus_id, const std::string& driver) {
  std::ifstream file(driver + "/gpus/" + lower(pci_bus_id) + "/information");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kMinor = "Device Minor:";
    if (!line.starts_with(kMinor)) continue;
    std::istringstream number(line.substr(kMinor.size()));
    unsigned minor = 0;
    if (number >> minor) return std::string(kGpuNode) + std::to_string(minor);
  }
  return {};
}

bool is_gpu_node(const std::string& name) {
  return name.starts_with(kGpuNode) && name.size() > kGpuNode.size() &&
         std::all_of(name.begin() + kGpuNode.size(), name.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::vector<std::string> nvidia_nodes(const std::string& folder) {
  std::vector<std::string> nodes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kGpuNode)) nodes.push_back(name);
  }
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

std::vector<std::string> gpu_nodes(const std::string& folder) {
  std::vector<std::string> nodes = nvidia_nodes(folder);
  std::erase_if(nodes, [](const std::string& name) { return !is_gpu_node(name); });
  return nodes;
}

Status make_private_dev(const std::vector<std::string>& gpus) {
  if (::unshare(CLONE_NEWNS) != 0) return failed("making a mount namespace (unshare)");
  // Unmounts outside of this namespace take effect here as well. Mounts here are not visible
  // outside.
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0)
    return failed("separating the mounts of the worker from those of the machine (mount)");
  const UniqueFd former(::open("/dev", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!former) return failed("opening /dev");
  if (::mount("tmpfs", "/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=64k") != 0) {
    return failed("mounting a tmpfs on /dev");
  }
  Status status = fill(former.get(), gpus);
  if (!status.ok()) ::umount2("/dev", MNT_DETACH);
  return status;
}

}  // namespace rcuda::server
