// Finds and loads the verbs plug-in, once per process, when verbs is first considered for a Link.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include "common/base/executable.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/transport/verbs/locked_memory.h"
#include "common/transport/verbs/medium.h"
#include "common/transport/verbs/plugin.h"

namespace rcuda::transport {
namespace {

std::string folder_of(const std::string& file) {
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? "." : file.substr(0, slash);
}

std::vector<std::string> folders() {
  if (const char* folder = ::secure_getenv("RCUDA_PLUGIN_DIR");
      folder != nullptr && *folder != '\0') {
    return {folder};
  }
  Dl_info self{};
  link_map* map = nullptr;
  if (::dladdr1(reinterpret_cast<const void*>(&verbs::usable_by_plugin), &self,
                reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0 ||
      map == nullptr) {
    return {};
  }
  // The dynamic linker gives a path only for libraries, and a program's argv[0] is not reliable.
  if (map->l_name[0] != '\0') return {folder_of(map->l_name) + "/rcuda"};
  const std::string tree = folder_of(executable_path()) + "/..";
  return {tree + "/" RCUDA_LIBDIR "/rcuda", tree + "/lib/rcuda"};  // installed tree, build tree
}

Result<const VerbsPlugin*> load() {
  std::string why;
  for (const std::string& folder : folders()) {
    const std::string path = folder + "/" + kVerbsPluginFile;
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      // Report a file that exists but does not load: usually a library that it needs is missing.
      if (::access(path.c_str(), F_OK) == 0) {
        why = ::dlerror();
      } else if (why.empty()) {
        why = "not found in " + folder + "; install the package rcuda-verbs";
      }
      continue;
    }
    const auto entry = reinterpret_cast<VerbsPluginEntry>(::dlsym(library, kVerbsPluginEntry));
    const VerbsPlugin* plugin = entry != nullptr ? entry() : nullptr;
    if (plugin == nullptr || std::strcmp(plugin->version, kVerbsPluginVersion) != 0) {
      why = path +
            " is of another build of rcuda than this process: install the same build of rcuda and "
            "rcuda-verbs. After an upgrade, end this process and start it again";
      continue;
    }
    return plugin;
  }
  return Status{Code::kUnsupported, std::string(kVerbsPluginFile) + ": " + why};
}

const Result<const VerbsPlugin*>& plugin() {
  static const auto* loaded = new Result<const VerbsPlugin*>(load());
  if (*loaded) {
    (**loaded)->set_log(internal::log_threshold.load(std::memory_order_relaxed), &write_log_line);
  }
  return *loaded;
}

}  // namespace

Status verbs::fit_host() {
  DIR* const adapters = ::opendir("/sys/class/infiniband");
  bool any = false;
  while (const dirent* entry = adapters ? ::readdir(adapters) : nullptr) {
    any |= entry->d_name[0] != '.';
  }
  if (adapters) ::closedir(adapters);
  if (!any) return {Code::kUnsupported, "this host has no RDMA adapter"};
  const LockedMemoryLimit limit = locked_memory_limit();
  if (limit.none) return {};
  return {Code::kUnsupported, "locked memory is limited to " + bytes_text(limit.bytes) +
                                  " in this process, but verbs needs unlimited locked memory: "
                                  "raise the limit (ulimit -l unlimited)"};
}

Status verbs::usable_by_plugin(int control_socket) {
  const Result<const VerbsPlugin*>& loaded = plugin();
  return loaded ? (*loaded)->usable(control_socket) : loaded.status();
}

Result<std::unique_ptr<Link>> verbs::make_by_plugin(Bootstrap bootstrap,
                                                    const LinkOptions& options) {
  const Result<const VerbsPlugin*>& loaded = plugin();
  if (!loaded) return loaded.status();
  return (*loaded)->make_link(std::move(bootstrap), options);
}

}  // namespace rcuda::transport
