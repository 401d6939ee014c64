#include "server/executor/nccl/library.h"

#include <dlfcn.h>
#include <link.h>

#include "common/base/log.h"

namespace rcuda::server {
namespace {

constexpr char kName[] = "libnccl.so.2";

Result<NcclLibrary> open_library(const std::string& choice) {
  if (choice == "none") return Status(Code::kUnsupported, "the server's setting `nccl` is none");
  const std::string file = choice == "auto" ? kName : choice;
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* const why = ::dlerror();
    return Status(Code::kNotFound,
                  std::string("the server cannot load NCCL (") + (why ? why : file) +
                      "); set `nccl` in its server.toml to the path of a " + kName);
  }
  NcclLibrary loaded;
  link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0) loaded.path = map->l_name;
  if (::dlsym(library, "rcuda_nccl_stub")) {
    return Status(Code::kInvalidArgument,
                  loaded.path +
                      " is rcuda's client library, not NCCL: remove its folder from the server's "
                      "LD_LIBRARY_PATH, or set `nccl` in its server.toml");
  }
  nccl::load_functions(&loaded.functions,
                       [library](const char* name) { return ::dlsym(library, name); });
  const nccl::Functions& functions = loaded.functions;
  if (!functions.ncclGetVersion || functions.ncclGetVersion(&loaded.version) != nccl::kSuccess ||
      !functions.ncclCommInitRankConfig || !functions.ncclCommFinalize) {
    return Status(Code::kUnsupported, loaded.path +
                                          " is not an NCCL of version 2.14 or later: install a "
                                          "newer NCCL, or set `nccl` in the server's server.toml");
  }
  RCUDA_INFO("NCCL %s loaded from %s", nccl::version_text(loaded.version).c_str(),
             loaded.path.c_str());
  return loaded;
}

}  // namespace

Result<const NcclLibrary*> load_nccl(const std::string& choice) {
  static const auto* const loaded = new Result<NcclLibrary>(open_library(choice));
  if (!loaded->ok()) return loaded->status();
  return &loaded->value();
}

}  // namespace rcuda::server
