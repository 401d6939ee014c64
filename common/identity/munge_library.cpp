#include "common/identity/munge_library.h"

#include <string>

#include <dlfcn.h>

namespace rcuda::identity::munge {
namespace {

constexpr char kFile[] = "libmunge.so.2";

template <typename Function>
bool find(void* handle, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(handle, name));
  return *function != nullptr;
}

std::string loader_error() {
  const char* text = ::dlerror();
  return text != nullptr ? text : "no reason given";
}

Result<Library> load() {
  void* const handle = ::dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Status(Code::kUnavailable, "MUNGE's library cannot be loaded (" + loader_error() +
                                          "): install it (Debian: libmunge2)");
  }
  Library found;
  if (find(handle, "munge_ctx_create", &found.create) &&
      find(handle, "munge_ctx_destroy", &found.destroy) &&
      find(handle, "munge_ctx_strerror", &found.error_of) &&
      find(handle, "munge_ctx_get", &found.get) && find(handle, "munge_ctx_set", &found.set) &&
      find(handle, "munge_strerror", &found.text_of) &&
      find(handle, "munge_encode", &found.encode) && find(handle, "munge_decode", &found.decode)) {
    return found;
  }
  return Status(Code::kUnavailable,
                "MUNGE's library is not usable (" + loader_error() + "): install libmunge 0.5");
}

}  // namespace

const Result<Library>& library() {
  static const Result<Library>* const loaded = new Result<Library>(load());
  return *loaded;
}

}  // namespace rcuda::identity::munge
