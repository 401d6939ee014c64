// cuLibrary* and cuKernelGet*: code that is loaded into a context when it is first used there.
#include <memory>
#include <span>
#include <string>

#include <cuda.h>

#include "common/cuda/known_values.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/jit_options.h"
#include "softgpu/driver/module.h"

using namespace softgpu::driver;

namespace {

// Loading a library needs no context. PTX text is parsed in this call, which reports errors in the
// text. A fatbin comes from a compiler and hardly ever has errors, so it is parsed when a part of
// it is first used. `is_lazy`: data that are not an image are loaded too, and every use of a kernel
// or variable fails, as with driver 580's cuLibraryLoadData.
CUresult load(CUlibrary* handle, const rcuda::Result<rcuda::image::Image>& image, bool is_lazy,
              unsigned count, CUjit_option* options, void** values, unsigned library_option_count,
              CUlibraryOption* library_options) {
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  if (library_option_count != 0 && !library_options) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < library_option_count; ++i) {
    if (!rcuda::cuda::is_known(library_options[i])) return CUDA_ERROR_INVALID_VALUE;
  }
  JitLog log;
  if (CUresult result = JitLog::read(count, options, values, &log)) return result;
  std::vector<std::string> units;
  CUresult result = read_image(image, &units, &log);
  if (result == CUDA_ERROR_INVALID_IMAGE && is_lazy) {
    auto library = std::make_shared<Library>(std::vector<std::string>(), result);
    *handle = library->handle();
    handle_table<Library>().insert(std::move(library));
    result = CUDA_SUCCESS;
  } else if (result == CUDA_SUCCESS) {
    auto library = std::make_shared<Library>(std::move(units));
    std::vector<std::string> names;
    if (image->format == rcuda::image::Format::kText) result = library->kernel_names(&names, &log);
    if (result == CUDA_SUCCESS) {
      *handle = library->handle();
      handle_table<Library>().insert(std::move(library));
    }
  }
  log.finish();
  return result;
}

// The library's module in the current context.
CUresult current_module(CUlibrary handle, std::shared_ptr<Module>* module) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  std::shared_ptr<Library> library = library_from_handle(handle);
  if (!library) return CUDA_ERROR_INVALID_HANDLE;
  return library->module_in(*context, module);
}

// cudart 13 asks for __managed__ variables right after it has loaded a library, before any context
// is current. They belong to no context, and every instance of the library has them.
CUresult any_module(CUlibrary handle, std::shared_ptr<Module>* module) {
  if (current_context()) return current_module(handle, module);
  if (CUresult result = check_initialized()) return result;
  std::shared_ptr<Library> library = library_from_handle(handle);
  if (!library) return CUDA_ERROR_INVALID_HANDLE;
  return library->module_in(device_at(0)->primary(), module);
}

CUresult find_global(CUlibrary handle, const char* name, bool managed, CUdeviceptr* address,
                     size_t* bytes) {
  if (!name || (!managed && !*name) || (!address && !bytes)) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Module> module;
  if (CUresult result = managed ? any_module(handle, &module) : current_module(handle, &module)) {
    return result;
  }
  const softgpu::exec::Global* global = module->program().find_global(name);
  if (!global || (managed && !global->managed)) return CUDA_ERROR_NOT_FOUND;
  if (address) *address = global->address;
  if (bytes) *bytes = global->size_bytes;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jit_options,
                                   void** jit_values, unsigned int jit_count,
                                   CUlibraryOption* library_options, void**,
                                   unsigned int library_option_count) {
  if (CUresult result = check_initialized()) return result;
  if (!code) return CUDA_ERROR_INVALID_VALUE;
  return load(library, rcuda::image::measure(code), /*is_lazy=*/true, jit_count, jit_options,
              jit_values, library_option_count, library_options);
}

CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary* library, const char* path,
                                       CUjit_option* jit_options, void** jit_values,
                                       unsigned int jit_count, CUlibraryOption* library_options,
                                       void**, unsigned int library_option_count) {
  if (CUresult result = check_initialized()) return result;
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  std::string contents;
  if (CUresult result = read_file(path, &contents)) return result;
  return load(library, rcuda::image::inspect(std::as_bytes(std::span(contents))),
              /*is_lazy=*/false, jit_count, jit_options, jit_values, library_option_count,
              library_options);
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary handle) {
  if (CUresult result = check_initialized()) return result;
  std::shared_ptr<Library> library = library_from_handle(handle);
  if (!library) return CUDA_ERROR_INVALID_HANDLE;
  // Running kernels may use the library's __managed__ variables. Errors of the wait are ignored: a
  // failed context runs no kernel.
  for (const std::shared_ptr<Context>& context : library->contexts()) {
    if (context->alive()) context->synchronize();
  }
  if (!handle_table<Library>().remove(handle)) return CUDA_ERROR_INVALID_HANDLE;
  library->drop_instances(nullptr);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel* kernel, CUlibrary handle, const char* name) {
  if (CUresult result = check_initialized()) return result;
  if (!kernel || !name) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Library> library = library_from_handle(handle);
  if (!library) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Kernel> found;
  if (CUresult result = library->kernel(name, &found)) return result;
  *kernel = found->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetKernelCount(unsigned int* count, CUlibrary handle) {
  if (CUresult result = check_initialized()) return result;
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Library> library = library_from_handle(handle);
  if (!library) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<std::string> names;
  if (CUresult result = library->kernel_names(&names)) return result;
  *count = static_cast<unsigned>(names.size());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int count,
                                           CUlibrary handle) {
  if (CUresult result = check_initialized()) return result;
  if (!kernels) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Library> library = library_from_handle(handle);
  if (!library) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<std::string> names;
  if (CUresult result = library->kernel_names(&names)) return result;
  for (size_t i = 0; i < count && i < names.size(); ++i) {
    std::shared_ptr<Kernel> kernel;
    if (CUresult result = library->kernel(names[i], &kernel)) return result;
    kernels[i] = kernel->handle();
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetModule(CUmodule* module, CUlibrary handle) {
  if (!module) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Module> found;
  if (CUresult result = current_module(handle, &found)) return result;
  *module = found->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                                    const char* name) {
  return find_global(library, name, /*managed=*/false, address, bytes);
}

CUresult CUDAAPI cuLibraryGetManaged(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                                     const char* name) {
  return find_global(library, name, /*managed=*/true, address, bytes);
}

// CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS is 0, so no name is found.
CUresult CUDAAPI cuLibraryGetUnifiedFunction(void** function, CUlibrary handle,
                                             const char* symbol) {
  if (CUresult result = check_initialized()) return result;
  if (!function || !symbol) return CUDA_ERROR_INVALID_VALUE;
  return library_from_handle(handle) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuKernelGetFunction(CUfunction* function, CUkernel handle) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Kernel> kernel = kernel_from_handle(handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Function> found;
  if (CUresult result = kernel->function_in(*context, &found)) return result;
  *function = found->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelGetLibrary(CUlibrary* library, CUkernel handle) {
  if (CUresult result = check_initialized()) return result;
  if (!library) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Kernel> kernel = kernel_from_handle(handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  *library = kernel->library()->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelGetName(const char** name, CUkernel handle) {
  if (CUresult result = check_initialized()) return result;
  if (!name || !handle) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Kernel> kernel = kernel_from_handle(handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  *name = kernel->name().c_str();
  return CUDA_SUCCESS;
}

}  // extern "C"
