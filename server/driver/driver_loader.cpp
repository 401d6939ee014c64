#include "server/driver/driver_loader.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include "api/exports/driver_version.h"
#include "common/base/executable.h"
#include "common/base/list_text.h"
#include "common/base/log.h"

namespace rcuda::server {
namespace {

std::string real_path(const std::string& path) {
  char resolved[PATH_MAX];
  return ::realpath(path.c_str(), resolved) ? resolved : "";
}

bool is_client_library(const std::string& path) {
  const std::string real = real_path(path);
  const size_t slash = real.rfind('/');
  return std::string_view(real)
      .substr(slash == std::string::npos ? 0 : slash + 1)
      .starts_with("librcuda");
}

std::string executable_folder() {
  // This also works if an upgrade has replaced the binary: its path then ends with " (deleted)".
  return executable_path().substr(0, executable_path().rfind('/'));
}

// Searches relative to this binary, in an installed tree and in a build folder.
std::string softgpu_path() {
  const std::string folder = executable_folder();
  for (const char* relative :
       {"/../lib/rcuda/softgpu/libcuda.so.1", "/../lib/x86_64-linux-gnu/rcuda/softgpu/libcuda.so.1",
        "/../../softgpu/lib/libcuda.so.1", "/../softgpu/lib/libcuda.so.1",
        "/../../../softgpu/lib/libcuda.so.1"}) {
    const std::string path = real_path(folder + relative);
    if (!path.empty()) return path;
  }
  return "";
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string remedy_of(CUresult result) {
  switch (result) {
    case CUDA_ERROR_STUB_LIBRARY:
      return "it is a stub of the toolkit: take its folder out of LD_LIBRARY_PATH";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return "the driver was updated, but its old kernel module is still loaded: restart the "
             "machine, or reload the module";
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return "start nvidia-fabricmanager";
    default:
      return "nvidia-smi shows whether the driver works";
  }
}

// The status of a failed cuInit, with the driver's text: cuGetErrorString works without cuInit.
Status cannot_init(const LoadedDriver& driver, CUresult result) {
  const char* text = nullptr;
  if (driver.table.cuGetErrorString) (void)driver.table.cuGetErrorString(result, &text);
  return Status::from_cuda(result, "cuInit of " + driver.path + " fails (" +
                                       (text ? text : "unknown error") + "): " + remedy_of(result));
}

Result<LoadedDriver> try_driver(const std::string& path) {
  LoadedDriver driver;
  if (const Status loaded = api::load(&driver.table, path.c_str()); !loaded.ok()) {
    return Status(Code::kNotFound, loaded.context() +
                                       " (install the driver on the server's machine, or correct "
                                       "RCUDA_DRIVER there)");
  }
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(driver.table.cuInit), &info) && info.dli_fname) {
    driver.path = real_path(info.dli_fname);
  }
  if (is_client_library(driver.path)) {
    return Status(Code::kInvalidArgument,
                  driver.path +
                      " is rcuda's client library, not a driver: correct --driver (RCUDA_DRIVER) "
                      "if it names this file, otherwise remove the file from the library path");
  }
  if (driver.table.cuDriverGetVersion(&driver.version) == CUDA_SUCCESS &&
      driver.version < api::kOldestDriver) {
    return Status(Code::kUnsupported,
                  driver.path + " is a driver of CUDA " + version_text(driver.version) +
                      ", and rcuda needs one of CUDA " + version_text(api::kOldestDriver) +
                      " or later: install NVIDIA driver 550 or later on the server's machine");
  }
  if (CUresult result = driver.table.cuInit(0); result != CUDA_SUCCESS) {
    return cannot_init(driver, result);
  }
  int devices = 0;
  if (driver.table.cuDeviceGetCount(&devices) != CUDA_SUCCESS || devices == 0) {
    return Status(Code::kNotFound, "the driver " + driver.path +
                                       " finds no GPU: check it with nvidia-smi on the server's "
                                       "machine, and the server's CUDA_VISIBLE_DEVICES");
  }
  return driver;
}

// Loads the driver that the settings name. If the driver is missing, the settings are wrong:
// kInvalidArgument.
Result<LoadedDriver> try_named(const std::string& path) {
  Result<LoadedDriver> driver = try_driver(path);
  if (driver.ok() || driver.status().code() != Code::kNotFound) return driver;
  return Status(Code::kInvalidArgument, driver.status().context());
}

constexpr char kNvidia[] = "libcuda.so.1";

// Returns the evidence that this machine has NVIDIA's driver: the path of the library, the error of
// a library that cannot be loaded, or a device file. Returns an empty text without evidence.
std::string trace_of_nvidia(const std::vector<std::string>& nodes) {
  link_map* map = nullptr;
  void* const library = ::dlopen(kNvidia, RTLD_LAZY | RTLD_LOCAL);
  if (library && ::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0) {
    const std::string path = real_path(map->l_name);
    if (!is_client_library(path)) return path;
  }
  // dlopen() reports this error if no library exists, and another error if a library cannot be
  // loaded.
  const std::string missing =
      kNvidia + std::string(": cannot open shared object file: No such file or directory");
  if (const char* const error = library ? nullptr : ::dlerror(); error && error != missing) {
    return error;
  }
  return nodes.empty() ? "" : "/dev/" + nodes.front();
}

constexpr std::string_view kConnectionsVariable = "CUDA_DEVICE_MAX_CONNECTIONS";
constexpr std::string_view kBlockingVariable = "CUDA_LAUNCH_BLOCKING";

// The driver makes 32 queues at most.
int connections_of(const char* value) { return std::clamp(std::atoi(value), 0, 32); }

}  // namespace

Result<LoadedDriver> load_driver(const std::string& choice,
                                 const std::vector<std::string>& nvidia_nodes) {
  if (choice == "nvidia") return try_named(kNvidia);
  const std::string softgpu = softgpu_path();
  if (choice == "softgpu") {
    if (softgpu.empty()) {
      return Status(Code::kInvalidArgument, "softgpu's libcuda.so.1 was not found near " +
                                                executable_folder() +
                                                ": set RCUDA_DRIVER to its path");
    }
    return try_named(softgpu);
  }
  if (choice != "auto") return try_named(choice);
  Result<LoadedDriver> nvidia = try_driver(kNvidia);
  if (nvidia.ok() || softgpu.empty()) return nvidia;
  if (const std::string trace = trace_of_nvidia(nvidia_nodes); !trace.empty()) {
    return Status(nvidia.status())
        .with_context("this machine has NVIDIA's driver (" + trace +
                      "), but it does not work; repair it, or name softgpu to serve the software "
                      "GPU in its place (--driver softgpu)");
  }
  RCUDA_DEBUG("no usable NVIDIA driver (%s): serving the software GPU (softgpu)",
              nvidia.status().message().c_str());
  return try_driver(softgpu);
}

int most_streams() {
  // The engine of copies between workers needs two queues of one kind: for copies within the
  // device, and for small copies to the device.
  constexpr int kOthers = 2;
  const char* value = std::getenv(kConnectionsVariable.data());
  return std::max(kConnections, value ? connections_of(value) : 0) - kOthers;
}

std::vector<std::string> worker_environment(const std::vector<std::string>& more) {
  std::vector<std::string> environment;
  const auto name_of = [](std::string_view line) { return line.substr(0, line.find('=')); };
  for (char** line = environ; *line; ++line) {
    const std::string_view name = name_of(*line);
    if (name == "LD_PRELOAD" || name == kBlockingVariable) continue;
    if (name == kConnectionsVariable && connections_of(*line + name.size() + 1) <= kConnections) {
      continue;
    }
    bool replaced = false;
    for (const std::string& other : more) replaced = replaced || name_of(other) == name;
    if (replaced) continue;
    if (name != "LD_LIBRARY_PATH") {
      environment.emplace_back(*line);
      continue;
    }
    std::string kept;
    std::string_view folders = *line + name.size() + 1;
    while (true) {
      const std::string folder(folders.substr(0, folders.find(':')));
      if (!is_client_library(folder + "/libcuda.so.1")) append_item(&kept, folder, ":");
      if (folders.find(':') == std::string_view::npos) break;
      folders.remove_prefix(folders.find(':') + 1);
    }
    if (!kept.empty()) environment.push_back("LD_LIBRARY_PATH=" + kept);
  }
  const auto given = [&](const std::string& line) { return name_of(line) == kConnectionsVariable; };
  if (std::none_of(environment.begin(), environment.end(), given)) {
    environment.push_back(std::string(kConnectionsVariable) + "=" + std::to_string(kConnections));
  }
  environment.insert(environment.end(), more.begin(), more.end());
  return environment;
}

}  // namespace rcuda::server
