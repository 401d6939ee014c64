// Looks up variables by name, and lists the names of functions and kernels. A list begins with name
// number `first` and has as many zero-terminated names as fit. It has no handles: the client looks
// up each name, because the look-up also returns the layout of the kernel's parameters.
#include <cstring>
#include <vector>

#include "api/driver_table.h"
#include "api/server_handlers.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::server {
namespace {

// Appends names until one does not fit. `*bytes` is the size of `names` on entry, and the number of
// used bytes on return.
template <typename Handle, typename GetName>
CUresult join_names(const std::vector<Handle>& handles, size_t first, GetName get_name, char* names,
                    size_t* bytes) {
  const size_t room = names != nullptr ? *bytes : 0;
  size_t used = 0;
  for (size_t i = first; i < handles.size(); ++i) {
    const char* name = nullptr;
    RCUDA_RETURN_IF_CUDA_ERROR(get_name(&name, handles[i]));
    const size_t length = std::strlen(name) + 1;
    if (length > room - used) break;
    std::memcpy(names + used, name, length);
    used += length;
  }
  *bytes = used;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult serve_rcuda_module_global(const api::DriverTable& table, CUmodule module, const char* name,
                                   CUdeviceptr* address, size_t* bytes, unsigned* is_managed) {
  const CUresult result = table.cuModuleGetGlobal_v2(address, bytes, module, name);
  *is_managed = 0;
  if (result != CUDA_SUCCESS) return result;
  // A pointer that the driver does not recognise is not managed.
  (void)table.cuPointerGetAttribute(is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, *address);
  return result;
}

CUresult serve_rcuda_module_function_names(const api::DriverTable& table, CUmodule module,
                                           unsigned int first, char* names, size_t* bytes) {
  unsigned int count = 0;
  RCUDA_RETURN_IF_CUDA_ERROR(table.cuModuleGetFunctionCount(&count, module));
  std::vector<CUfunction> functions(count);
  if (count != 0)
    RCUDA_RETURN_IF_CUDA_ERROR(table.cuModuleEnumerateFunctions(functions.data(), count, module));
  return join_names(functions, first, table.cuFuncGetName, names, bytes);
}

CUresult serve_rcuda_library_kernel_names(const api::DriverTable& table, CUlibrary library,
                                          unsigned int first, char* names, size_t* bytes) {
  unsigned int count = 0;
  RCUDA_RETURN_IF_CUDA_ERROR(table.cuLibraryGetKernelCount(&count, library));
  std::vector<CUkernel> kernels(count);
  if (count != 0)
    RCUDA_RETURN_IF_CUDA_ERROR(table.cuLibraryEnumerateKernels(kernels.data(), count, library));
  return join_names(kernels, first, table.cuKernelGetName, names, bytes);
}

CUresult serve_rcuda_function_name(const api::DriverTable& table, CUfunction device_function,
                                   char* text, size_t* bytes) {
  return join_names(std::vector{device_function}, 0, table.cuFuncGetName, text, bytes);
}

}  // namespace rcuda::server
