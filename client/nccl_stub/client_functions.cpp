#include "client/nccl_stub/client_functions.h"

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <dlfcn.h>

// The symbol shows a server that it has loaded this library instead of NCCL.
extern "C" __attribute__((visibility("default"))) const char rcuda_nccl_stub = 1;

namespace {

using Find = const rcuda::nccl::Functions* (*)();
constexpr char kSymbol[] = "rcuda_nccl_functions";

Find find_in(void* library) {
  return library ? reinterpret_cast<Find>(::dlsym(library, kSymbol)) : nullptr;
}

// Loads the client library of the same installation: this library's folder also has libcuda.so.1.
void* load_own() {
  Dl_info info{};
  char real[PATH_MAX];
  if (!::dladdr(&rcuda_nccl_stub, &info) || !::realpath(info.dli_fname, real)) return nullptr;
  const std::string path(real);
  const std::string folder = path.substr(0, path.rfind('/'));
  return ::dlopen((folder + "/libcuda.so.1").c_str(), RTLD_NOW | RTLD_GLOBAL);
}

// A libcuda.so.1 that the program has already loaded is the client library.
const rcuda::nccl::Functions* find_client() {
  Find find = find_in(RTLD_DEFAULT);
  if (!find) find = find_in(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
  if (!find) find = find_in(load_own());
  if (find) return find();
  const char* const why = ::dlerror();
  std::fprintf(
      stderr, "rcuda: libnccl.so.2 of rcuda cannot load librcuda.so: %s\n",
      why ? why : "librcuda.so is of another build; install the same build of both libraries");
  return nullptr;
}

}  // namespace

const rcuda::nccl::Functions* client_functions() {
  static const rcuda::nccl::Functions* const functions = find_client();
  return functions;
}
