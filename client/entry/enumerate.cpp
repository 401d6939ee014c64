// The contents of a module or library, and the names of functions. The worker returns the names.
// The client looks up each name to make its handle; the lookup also gets the parameter layout for
// launches.

#include <cstring>
#include <string>
#include <unordered_set>
#include <vector>

#include <cuda.h>

#include "client/objects/arena.h"
#include "client/objects/code.h"
#include "common/base/mutex.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

constexpr size_t kNamesBytes = 60u << 10;  // capacity of one reply

// Gets up to `limit` names. `ask(first, names, bytes)` calls one of the forward_rcuda_*_names.
template <typename Ask>
CUresult collect_names(unsigned limit, const Ask& ask, std::vector<std::string>* found) {
  std::vector<char> names(kNamesBytes);
  while (found->size() < limit) {
    size_t bytes = names.size();
    RCUDA_RETURN_IF_CUDA_ERROR(ask(static_cast<unsigned>(found->size()), names.data(), &bytes));
    // Stop if there are no more names, or if the next name does not fit into a reply.
    if (bytes == 0 || bytes > names.size() || names[bytes - 1] != '\0') break;
    for (size_t at = 0; at < bytes && found->size() < limit; at += found->back().size() + 1) {
      found->emplace_back(names.data() + at);
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned count, CUmodule module) {
  if (!functions) return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::string> names;
  const auto ask = [&](unsigned first, char* text, size_t* bytes) {
    return forward_rcuda_module_function_names(module, first, text, bytes);
  };
  RCUDA_RETURN_IF_CUDA_ERROR(collect_names(count, ask, &names));
  for (size_t i = 0; i < names.size(); ++i) {
    RCUDA_RETURN_IF_CUDA_ERROR(cuModuleGetFunction(&functions[i], module, names[i].c_str()));
  }
  return CUDA_SUCCESS;
}

// A library with a defective image counts as empty. The first use of its code returns the error.
CUresult cuLibraryGetKernelCount(unsigned* count, CUlibrary library) {
  const auto* const known = find<Library>(library);
  if (!count || !known || known->defect == CUDA_SUCCESS) {
    return forward_cuLibraryGetKernelCount(count, library);
  }
  *count = 0;
  return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count, CUlibrary library) {
  if (!kernels) return CUDA_ERROR_INVALID_VALUE;
  const auto* const known = find<Library>(library);
  if (known && known->defect != CUDA_SUCCESS) return CUDA_SUCCESS;
  std::vector<std::string> names;
  const auto ask = [&](unsigned first, char* text, size_t* bytes) {
    return forward_rcuda_library_kernel_names(library, first, text, bytes);
  };
  RCUDA_RETURN_IF_CUDA_ERROR(collect_names(count, ask, &names));
  for (size_t i = 0; i < names.size(); ++i) {
    RCUDA_RETURN_IF_CUDA_ERROR(cuLibraryGetKernel(&kernels[i], library, names[i].c_str()));
  }
  return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char** name, CUfunction function) {
  if (!name || !function) return CUDA_ERROR_INVALID_VALUE;
  std::vector<char> text(kNamesBytes);
  size_t bytes = text.size();
  RCUDA_RETURN_IF_CUDA_ERROR(forward_rcuda_function_name(function, text.data(), &bytes));
  if (bytes == 0 || bytes > text.size() || text[bytes - 1] != '\0') return CUDA_ERROR_UNKNOWN;
  // Names are never freed, because the application may keep the pointer.
  static rcuda::Mutex mutex;
  static auto* const names = new std::unordered_set<std::string>;
  rcuda::MutexLock lock(mutex);
  *name = names->emplace(text.data()).first->c_str();
  return CUDA_SUCCESS;
}

}  // extern "C"
