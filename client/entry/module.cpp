// Modules, libraries and kernels: loading and lookup.

#include <algorithm>
#include <climits>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cuda.h>

#include "client/code/functions.h"
#include "client/code/jit_options.h"
#include "client/code/known_globals.h"
#include "client/code/module_images.h"
#include "client/objects/arena.h"
#include "client/objects/named.h"
#include "client/process/driver_variables.h"
#include "client/process/process.h"
#include "client/route/find_route.h"
#include "common/base/mutex.h"
#include "common/cuda/known_values.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

// Copies the option values back into the application's array, because some options return a number
// there.
void return_values(const JitOptions& options, void** values) {
  for (size_t i = 0; i < options.values.size(); ++i) values[i] = options.values[i];
}

CUresult add_function(Module& module, const std::string& name, std::unique_ptr<FunctionInfo> info,
                      Function** function) RCUDA_REQUIRES(module.mutex) {
  const Identity identity{info->id, module.context, module.session, module.device};
  auto* created = create<Function>(identity, std::move(info));
  if (!created) return CUDA_ERROR_OUT_OF_MEMORY;
  remember_named(created);
  module.functions.emplace(name, created);
  *function = created;
  return CUDA_SUCCESS;
}

// Loads a module. `bytes`: the exact size of the image, for the contents of a file. `values`: the
// application's array from which `options` was read.
CUresult load_module(CUmodule* handle, const void* pointer, std::optional<size_t> bytes,
                     JitOptions options, void** values = nullptr) {
  RCUDA_ASSIGN_OR_RETURN(const Route route, find_current_route());
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  ImageParts image;
  RCUDA_RETURN_IF_CUDA_ERROR(measure_image(pointer, bytes, &image));
  RCUDA_RETURN_IF_CUDA_ERROR(await_idle(*route.session, route.context));
  void* created = nullptr;
  wire::ObjectId id;
  RCUDA_RETURN_IF_CUDA_ERROR(mint(route, wire::Kind::kModule, &created, &id));
  LoadedFunctions functions;
  const CUresult result = load_image(*route.session, route.context, wire::Custom::kModuleLoad, id,
                                     image, options, &functions);
  if (values) return_values(options, values);
  if (result != CUDA_SUCCESS) {
    retire(created, wire::Kind::kModule);
    return result;
  }
  *handle = static_cast<CUmodule>(created);
  auto& module = *static_cast<Module*>(static_cast<Object*>(created));
  for (LoadedFunction& loaded : functions) {
    rcuda::MutexLock lock(module.mutex);
    Function* function;
    (void)add_function(module, loaded.name, std::move(loaded.info), &function);
  }
  return CUDA_SUCCESS;
}

template <typename Option>
bool all_known(unsigned count, const Option* keys) {
  return std::all_of(keys, keys + count, [](Option key) { return rcuda::cuda::is_known(key); });
}

CUresult read_options(unsigned count, const CUjit_option* keys, void* const* values,
                      JitOptions* options) {
  if (count == 0) return CUDA_SUCCESS;
  if (!keys || !values || !all_known(count, keys)) return CUDA_ERROR_INVALID_VALUE;
  options->keys.assign(keys, keys + count);
  options->values.assign(values, values + count);
  return CUDA_SUCCESS;
}

// Reads library options. `values` may be null, because library options may have no value.
CUresult read_options(unsigned count, const CUlibraryOption* keys, void* const* values,
                      JitOptions* options) {
  if (count == 0) return CUDA_SUCCESS;
  if (!keys || !all_known(count, keys)) return CUDA_ERROR_INVALID_VALUE;
  options->library_keys.assign(keys, keys + count);
  if (values) options->library_values.assign(values, values + count);
  options->library_values.resize(count);
  return CUDA_SUCCESS;
}

// Reads both lists of options of a call that loads a library.
CUresult read_options(unsigned jit_count, const CUjit_option* jit_keys, void* const* jit_values,
                      unsigned count, const CUlibraryOption* keys, void* const* values,
                      JitOptions* options) {
  RCUDA_RETURN_IF_CUDA_ERROR(read_options(jit_count, jit_keys, jit_values, options));
  return read_options(count, keys, values, options);
}

// Copies the parts, because the application may free or reuse its memory after the call.
void own_parts(ImageParts* image) {
  for (auto& part : image->parts) {
    image->copies.emplace_back(part.begin(), part.end());
    part = image->copies.back();
  }
}

bool is_preserved(const JitOptions& options) {
  const auto& keys = options.library_keys;
  return std::find(keys.begin(), keys.end(), CU_LIBRARY_BINARY_IS_PRESERVED) != keys.end();
}

// Loads a library. `bytes`: the exact size of the image, for the contents of a file.
CUresult load_library(CUlibrary* handle, const void* pointer, std::optional<size_t> bytes,
                      JitOptions options) {
  Process& process = Process::get();
  RCUDA_RETURN_IF_CUDA_ERROR(process.check());
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  ImageParts image;
  const CUresult measured = measure_image(pointer, bytes, &image);
  if (measured == CUDA_ERROR_INVALID_IMAGE && !bytes) {
    // Driver 580 does not read the image until the first use of its code.
    auto* library = create<Library>({}, ImageParts(), JitOptions(), measured);
    *handle = reinterpret_cast<CUlibrary>(library);
    return library ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (measured != CUDA_SUCCESS) return measured;
  // Other sessions load the library when they first need it. By then the caller has freed the
  // contents of a file, and the application may have freed the image.
  if (bytes || (process.sessions().size() > 1 && !is_preserved(options))) own_parts(&image);
  auto* library = create<Library>({}, std::move(image), std::move(options));
  if (!library) return CUDA_ERROR_OUT_OF_MEMORY;
  // Loads the library now, so that this call returns errors in the image, as with a local driver.
  const Route route = any_route();
  wire::ObjectId id;
  LoadedFunctions functions;
  if (CUresult result = id_on(*library, *route.session, route.context, &id, &functions);
      result != CUDA_SUCCESS) {
    destroy(library);
    return result;
  }
  for (LoadedFunction& function : functions) add_kernel(*library, route, std::move(function));
  // Later loads must not write to the log buffers: the application may free them after this call.
  forget_logs(&library->options);
  *handle = reinterpret_cast<CUlibrary>(library);
  return CUDA_SUCCESS;
}

CUresult find_library(CUlibrary handle, Library** library) {
  return resolve_object(handle, library, CUDA_ERROR_INVALID_HANDLE);
}

// Gets a variable of a module. Queries the worker once, because runtimes of CUDA 12 look a variable
// up at every use.
CUresult find_global(CUmodule handle, Module& module, const char* name, Module::Global* found) {
  rcuda::MutexLock lock(module.mutex);
  if (auto known = module.globals.find(name); known != module.globals.end()) {
    *found = known->second;
    return CUDA_SUCCESS;
  }
  unsigned is_managed = 0;
  RCUDA_RETURN_IF_CUDA_ERROR(
      forward_rcuda_module_global(handle, name, &found->address, &found->bytes, &is_managed));
  const Route route = route_of(module);
  Library* library = module.library.load(std::memory_order_acquire);
  RCUDA_RETURN_IF_CUDA_ERROR(add_variable(library ? library->variables : module.variables,
                                          found->address, found->bytes, route, is_managed != 0));
  module.globals.emplace(name, *found);
  return CUDA_SUCCESS;
}

// Gets a function of a library's module: the function of the library's kernel in the module's
// context.
CUresult library_function(Library& library, const Module& module, const char* name,
                          CUfunction* function) {
  const Route route = route_of(module);
  Kernel* kernel;
  Function* found;
  CUresult result = find_kernel(library, route, name, &kernel);
  if (result == CUDA_SUCCESS) result = function_in(*kernel, route, &found);
  if (result == CUDA_SUCCESS) *function = reinterpret_cast<CUfunction>(found);
  return result;
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace
namespace wire = rcuda::wire;

extern "C" {

// ---- modules -----------------------------------------------------------------------------------

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, CUjit_option* keys,
                            void** values) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  JitOptions options;
  RCUDA_RETURN_IF_CUDA_ERROR(read_options(count, keys, values, &options));
  return load_module(module, image, std::nullopt, std::move(options), values);
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return load_module(module, image, std::nullopt, {});
}

CUresult cuModuleLoadFatBinary(CUmodule* module, const void* fatbin) {
  return load_module(module, fatbin, std::nullopt, {});
}

CUresult cuModuleLoad(CUmodule* module, const char* path) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  std::vector<char> contents;
  RCUDA_RETURN_IF_CUDA_ERROR(read_file(path, &contents));
  return load_module(module, contents.data(), contents.size(), {});
}

CUresult cuModuleUnload(CUmodule handle) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  auto* module = find<Module>(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  if (module->is_of_library()) return CUDA_ERROR_NOT_PERMITTED;  // it ends with its library
  forget_variables(module->variables);
  RetiredEarly retired;  // for the functions, which end with the module
  rcuda::MutexLock lock(module->mutex);
  for (const auto& [name, function] : module->functions) retired.add(function);
  module->functions.clear();
  module->globals.clear();
  lock.unlock();
  return forward_cuModuleUnload(handle);
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  *mode = driver_variables().module_loading;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  auto* module = find<Module>(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  if (!function || !name || !*name) return CUDA_ERROR_INVALID_VALUE;
  if (Library* library = module->library.load(std::memory_order_acquire)) {
    return library_function(*library, *module, name, function);
  }
  rcuda::MutexLock lock(module->mutex);
  if (auto known = module->functions.find(name); known != module->functions.end()) {
    *function = reinterpret_cast<CUfunction>(known->second);
    return CUDA_SUCCESS;
  }
  std::unique_ptr<FunctionInfo> info;
  RCUDA_RETURN_IF_CUDA_ERROR(
      ask_function(*module->session, module->context, module->id, false, name, &info));
  Function* created;
  const CUresult result = add_function(*module, name, std::move(info), &created);
  if (result == CUDA_SUCCESS) *function = reinterpret_cast<CUfunction>(created);
  return result;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule handle,
                              const char* name) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  auto* module = find<Module>(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  if (!name || !*name || (!address && !bytes)) return CUDA_ERROR_INVALID_VALUE;  // one may be null
  Module::Global found;
  RCUDA_RETURN_IF_CUDA_ERROR(find_global(handle, *module, name, &found));
  if (address) *address = found.address;
  if (bytes) *bytes = found.bytes;
  return CUDA_SUCCESS;
}

// ---- libraries ---------------------------------------------------------------------------------

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jit_keys,
                           void** jit_values, unsigned jit_count, CUlibraryOption* keys,
                           void** values, unsigned count) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  JitOptions options;
  RCUDA_RETURN_IF_CUDA_ERROR(
      read_options(jit_count, jit_keys, jit_values, count, keys, values, &options));
  return load_library(library, code, std::nullopt, std::move(options));
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* jit_keys,
                               void** jit_values, unsigned jit_count, CUlibraryOption* keys,
                               void** values, unsigned count) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  std::vector<char> contents;
  RCUDA_RETURN_IF_CUDA_ERROR(read_file(path, &contents));
  JitOptions options;
  RCUDA_RETURN_IF_CUDA_ERROR(
      read_options(jit_count, jit_keys, jit_values, count, keys, values, &options));
  return load_library(library, contents.data(), contents.size(), std::move(options));
}

CUresult cuLibraryUnload(CUlibrary handle) {
  Library* library;
  RCUDA_RETURN_IF_CUDA_ERROR(find_library(handle, &library));
  KnownGlobals::get().forget(library);
  unload(*library);
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary handle, const char* name) {
  Library* library;
  RCUDA_RETURN_IF_CUDA_ERROR(find_library(handle, &library));
  if (!kernel || !name) return CUDA_ERROR_INVALID_VALUE;
  Kernel* found;
  const CUresult result = find_kernel(*library, any_route(), name, &found);
  if (result == CUDA_SUCCESS) *kernel = reinterpret_cast<CUkernel>(found);
  return result;
}

CUresult cuLibraryGetModule(CUmodule* module, CUlibrary handle) {
  RCUDA_ASSIGN_OR_RETURN(const Route route, find_current_route());
  Library* library;
  RCUDA_RETURN_IF_CUDA_ERROR(find_library(handle, &library));
  if (!module) return CUDA_ERROR_INVALID_VALUE;
  return library_module(*library, route, module);
}

CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                            const char* name) {
  if ((!address && !bytes) || (name && !*name)) return CUDA_ERROR_INVALID_VALUE;  // one may be null
  auto* const object = find<Library>(library);
  const auto current = find_current_route();
  const bool known = object && name && current;
  Module::Global found;
  if (!known || !KnownGlobals::get().find(object, *current, name, &found)) {
    RCUDA_RETURN_IF_CUDA_ERROR(
        forward_cuLibraryGetGlobal(&found.address, &found.bytes, library, name));
    if (!object) return CUDA_ERROR_INVALID_HANDLE;
    const Route owner = known ? *current : any_route();
    RCUDA_RETURN_IF_CUDA_ERROR(
        add_variable(object->variables, found.address, found.bytes, owner, false));
    if (known) {
      KnownGlobals::get().note(object, *current, name, found);
    }
  }
  if (address) *address = found.address;
  if (bytes) *bytes = found.bytes;
  return CUDA_SUCCESS;
}

// rcuda has no unified functions. For a symbol that is not a unified function, a driver returns the
// same error (580 on an H100).
CUresult cuLibraryGetUnifiedFunction(void**, CUlibrary handle, const char*) {
  Library* library;
  RCUDA_RETURN_IF_CUDA_ERROR(find_library(handle, &library));
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLibraryGetManaged(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                             const char* name) {
  if (!address && !bytes) return CUDA_ERROR_INVALID_VALUE;  // one output may be null
  CUdeviceptr found = 0;
  size_t size = 0;
  RCUDA_RETURN_IF_CUDA_ERROR(forward_cuLibraryGetManaged(&found, &size, library, name));
  // The application accesses the variable at this address, so the memory is mirrored there.
  auto* const object = find<Library>(library);
  if (!object) return CUDA_ERROR_INVALID_HANDLE;
  RCUDA_RETURN_IF_CUDA_ERROR(add_variable(object->variables, found, size, any_route(), true));
  if (address) *address = found;
  if (bytes) *bytes = size;
  return CUDA_SUCCESS;
}

// ---- kernels and functions ---------------------------------------------------------------------

CUresult cuKernelGetFunction(CUfunction* function, CUkernel handle) {
  RCUDA_ASSIGN_OR_RETURN(const Route route, find_current_route());
  auto* kernel = find<Kernel>(handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  Function* found;
  const CUresult result = function_in(*kernel, route, &found);
  if (result == CUDA_SUCCESS) *function = reinterpret_cast<CUfunction>(found);
  return result;
}

CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel handle) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  const auto* kernel = find<Kernel>(handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (!library) return CUDA_ERROR_INVALID_VALUE;
  *library = reinterpret_cast<CUlibrary>(&kernel->library);
  return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char** name, CUkernel handle) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!name || !handle) return CUDA_ERROR_INVALID_VALUE;
  const auto* kernel = find<Kernel>(handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  *name = kernel->name.c_str();
  return CUDA_SUCCESS;
}

}  // extern "C"
