// Finds and loads the verbs plug-in when a verbs Link is first asked for, once per process.
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/transport/link.h"
#include "common/transport/verbs/plugin.h"

namespace rcuda::transport {
namespace {

std::vector<std::string> candidates() {
  std::vector<std::string> paths;
  const std::string file = std::string("/") + kVerbsPluginFile;
  if (const char* folder = std::getenv("RCUDA_PLUGIN_DIR"); folder != nullptr && *folder != '\0') {
    paths.push_back(folder + file);
    return paths;
  }
  Dl_info self{};
  if (::dladdr(reinterpret_cast<const void*>(&verbs_usable), &self) != 0 &&
      self.dli_fname != nullptr) {
    const std::string name = self.dli_fname;
    const size_t slash = name.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : name.substr(0, slash);
    // Beside librcuda.so, and from bin/ of the same tree, built or installed.
    for (const char* below : {"/rcuda", "/../lib/rcuda"}) paths.push_back(folder + below + file);
  }
  paths.push_back(RCUDA_INSTALLED_PLUGINS + file);
  return paths;
}

Result<const VerbsPlugin*> load() {
  std::string why = "not found";
  for (const std::string& path : candidates()) {
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      // A file that is there but does not load is the interesting case: a library it needs is not.
      if (::access(path.c_str(), F_OK) == 0) why = ::dlerror();
      continue;
    }
    const auto entry = reinterpret_cast<VerbsPluginEntry>(::dlsym(library, kVerbsPluginEntry));
    const VerbsPlugin* plugin = entry != nullptr ? entry() : nullptr;
    if (plugin == nullptr || std::strcmp(plugin->version, kVerbsPluginVersion) != 0) {
      why = path + " belongs to another version";
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

Status verbs_usable(int control_socket) {
  const Result<const VerbsPlugin*>& loaded = plugin();
  return loaded ? (*loaded)->usable(control_socket) : loaded.status();
}

Result<std::unique_ptr<Link>> make_verbs_link(Bootstrap bootstrap, const LinkOptions& options) {
  const Result<const VerbsPlugin*>& loaded = plugin();
  if (!loaded) return loaded.status();
  return (*loaded)->make_link(std::move(bootstrap), options);
}

}  // namespace rcuda::transport
