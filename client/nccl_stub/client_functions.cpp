#include "client/nccl_stub/client_functions.h"

#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <dlfcn.h>

// The symbol shows a server that it has loaded this library instead of NCCL.
extern "C" __attribute__((visibility("default"))) const char rcuda_nccl_stub = 1;

namespace {

using Find = const rcuda::nccl::Functions* (*)();
using SetEncryption = int (*)(const rcuda::nccl::EncryptionConfig*);

// Loads the client library of the same installation: this library's folder also has libcuda.so.1.
void* load_own() {
  Dl_info info{};
  char real[PATH_MAX];
  if (!::dladdr(&rcuda_nccl_stub, &info) || !::realpath(info.dli_fname, real)) return nullptr;
  const std::string path(real);
  const std::string folder = path.substr(0, path.rfind('/'));
  return ::dlopen((folder + "/libcuda.so.1").c_str(), RTLD_NOW | RTLD_GLOBAL);
}

// Returns the symbol of the client library. If the program has already loaded a libcuda.so.1, that
// is the client library. Returns null if the client library cannot be loaded or lacks the symbol;
// the first call reports that.
void* find_in_client(const char* name) {
  const auto find_in = [name](void* library) { return library ? ::dlsym(library, name) : nullptr; };
  void* found = ::dlsym(RTLD_DEFAULT, name);
  if (!found) found = find_in(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
  if (!found) found = find_in(load_own());
  static std::atomic<bool> is_reported{false};
  if (found || is_reported.exchange(true)) return found;
  const char* const why = ::dlerror();
  std::fprintf(
      stderr, "rcuda: libnccl.so.2 of rcuda cannot load librcuda.so: %s\n",
      why ? why : "librcuda.so is of another build; install the same build of both libraries");
  return nullptr;
}

}  // namespace

const rcuda::nccl::Functions* client_functions() {
  static const rcuda::nccl::Functions* const functions = [] {
    const auto find = reinterpret_cast<Find>(find_in_client("rcuda_nccl_functions"));
    return find ? find() : nullptr;
  }();
  return functions;
}

int early::ncclSetEncryption(const rcuda::nccl::EncryptionConfig* config) {
  const auto set = reinterpret_cast<SetEncryption>(find_in_client("rcuda_nccl_set_encryption"));
  return set ? set(config) : int{rcuda::nccl::kSystemError};
}
