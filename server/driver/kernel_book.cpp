#include "server/driver/kernel_book.h"

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/cuda/return_if_error.h"
#include "common/image/kernel_layout.h"

namespace rcuda::server {
namespace {

using image::KernelLayout;
// The kernels of one image, by name. Shared by a library and its modules.
using Kernels = std::map<std::string, KernelLayout>;

class KernelBook {
 public:
  explicit KernelBook(const api::DriverTable& table) : driver(table) {}

  void add_owner(void* owner, const void* code) {
    auto kernels = std::make_shared<Kernels>();
    if (const Result<image::Image> image = image::measure(code); image.ok()) {
      for (KernelLayout& kernel : image::kernel_layouts(*image, compute_capability())) {
        kernels->emplace(kernel.name, kernel);
      }
    }
    MutexLock lock(mutex_);
    owners_[owner] = std::move(kernels);
  }

  void add_owner_like(void* owner, void* other) {
    MutexLock lock(mutex_);
    if (const auto found = owners_.find(other); found != owners_.end()) {
      owners_[owner] = found->second;
    }
  }

  void remove_owner(void* owner) {
    MutexLock lock(mutex_);
    const auto found = owners_.find(owner);
    if (found == owners_.end()) return;
    std::erase_if(functions_,
                  [&](const auto& entry) { return entry.second.owner == found->second; });
    owners_.erase(found);
  }

  // Adds a function or kernel that was looked up in its owner.
  CUresult add_function(void* function, void* owner, const char* name) {
    MutexLock lock(mutex_);
    const auto found = owners_.find(owner);
    if (found == owners_.end()) return CUDA_ERROR_INVALID_HANDLE;
    const auto kernel = found->second->find(name);
    if (kernel == found->second->end()) {
      RCUDA_ERROR(
          "the parameters of kernel %s are not known: this driver does not tell them (12.4 and "
          "later do), and the image that it comes from cannot be read; update the node's driver",
          name);
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    functions_[function] = {found->second, &kernel->second};
    return CUDA_SUCCESS;
  }

  void add_function_like(void* function, void* other) {
    MutexLock lock(mutex_);
    if (const auto found = functions_.find(other); found != functions_.end()) {
      functions_[function] = Entry(found->second);
    }
  }

  // Null if the function is not known. Valid as long as its owner is loaded.
  const KernelLayout* layout(void* function) const {
    MutexLock lock(mutex_);
    const auto found = functions_.find(function);
    return found == functions_.end() ? nullptr : found->second.layout;
  }

  std::shared_ptr<const Kernels> kernels(void* owner) const {
    MutexLock lock(mutex_);
    const auto found = owners_.find(owner);
    return found == owners_.end() ? nullptr : found->second;
  }

  const api::DriverTable driver;  // the table as it was loaded

 private:
  struct Entry {
    std::shared_ptr<const Kernels> owner;
    const KernelLayout* layout = nullptr;
  };

  uint32_t compute_capability() const {
    CUdevice device = 0;
    int major = 0, minor = 0;
    if (driver.cuCtxGetDevice(&device) != CUDA_SUCCESS) device = 0;
    driver.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    driver.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    return static_cast<uint32_t>(10 * major + minor);
  }

  mutable Mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<Kernels>> owners_ RCUDA_GUARDED_BY(mutex_);
  std::unordered_map<void*, Entry> functions_ RCUDA_GUARDED_BY(mutex_);
};

KernelBook* book = nullptr;  // never freed

// ---- wrapped functions

CUresult module_load(CUmodule* module, const void* code) {
  const CUresult result = book->driver.cuModuleLoadData(module, code);
  if (result == CUDA_SUCCESS) book->add_owner(*module, code);
  return result;
}

CUresult module_load_ex(CUmodule* module, const void* code, unsigned count, CUjit_option* options,
                        void** values) {
  const CUresult result = book->driver.cuModuleLoadDataEx(module, code, count, options, values);
  if (result == CUDA_SUCCESS) book->add_owner(*module, code);
  return result;
}

CUresult module_unload(CUmodule module) {
  const CUresult result = book->driver.cuModuleUnload(module);
  if (result == CUDA_SUCCESS) book->remove_owner(module);
  return result;
}

CUresult module_function(CUfunction* function, CUmodule module, const char* name) {
  const CUresult result = book->driver.cuModuleGetFunction(function, module, name);
  return result == CUDA_SUCCESS ? book->add_function(*function, module, name) : result;
}

CUresult library_load(CUlibrary* library, const void* code, CUjit_option* options, void** values,
                      unsigned count, CUlibraryOption* library_options, void** library_values,
                      unsigned library_count) {
  const CUresult result = book->driver.cuLibraryLoadData(
      library, code, options, values, count, library_options, library_values, library_count);
  if (result == CUDA_SUCCESS) book->add_owner(*library, code);
  return result;
}

CUresult library_unload(CUlibrary library) {
  const CUresult result = book->driver.cuLibraryUnload(library);
  if (result == CUDA_SUCCESS) book->remove_owner(library);
  return result;
}

CUresult library_kernel(CUkernel* kernel, CUlibrary library, const char* name) {
  const CUresult result = book->driver.cuLibraryGetKernel(kernel, library, name);
  return result == CUDA_SUCCESS ? book->add_function(*kernel, library, name) : result;
}

CUresult library_module(CUmodule* module, CUlibrary library) {
  const CUresult result = book->driver.cuLibraryGetModule(module, library);
  if (result == CUDA_SUCCESS) book->add_owner_like(*module, library);
  return result;
}

CUresult kernel_function(CUfunction* function, CUkernel kernel) {
  const CUresult result = book->driver.cuKernelGetFunction(function, kernel);
  if (result == CUDA_SUCCESS) book->add_function_like(*function, kernel);
  return result;
}

// ---- replacements for missing functions

CUresult name_of(const char** name, void* function) {
  const KernelLayout* layout = book->layout(function);
  if (!layout) return CUDA_ERROR_INVALID_HANDLE;
  *name = layout->name.c_str();
  return CUDA_SUCCESS;
}

CUresult parameter_of(void* function, size_t index, size_t* offset, size_t* bytes) {
  const KernelLayout* layout = book->layout(function);
  if (!layout) return CUDA_ERROR_INVALID_HANDLE;
  if (index >= layout->parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = layout->parameters[index].offset_bytes;
  if (bytes) *bytes = layout->parameters[index].size_bytes;
  return CUDA_SUCCESS;
}

CUresult function_name(const char** name, CUfunction function) { return name_of(name, function); }
CUresult kernel_name(const char** name, CUkernel kernel) { return name_of(name, kernel); }

CUresult function_parameter(CUfunction function, size_t index, size_t* offset, size_t* bytes) {
  return parameter_of(function, index, offset, bytes);
}

CUresult kernel_parameter(CUkernel kernel, size_t index, size_t* offset, size_t* bytes) {
  return parameter_of(kernel, index, offset, bytes);
}

CUresult count_in(unsigned* count, void* owner) {
  const auto kernels = book->kernels(owner);
  if (!kernels) return CUDA_ERROR_INVALID_HANDLE;
  *count = static_cast<unsigned>(kernels->size());
  return CUDA_SUCCESS;
}

template <typename Handle, typename Owner, typename GetByName>
CUresult enumerate(Handle* handles, unsigned count, Owner owner, GetByName get) {
  const auto kernels = book->kernels(owner);
  if (!kernels) return CUDA_ERROR_INVALID_HANDLE;
  unsigned filled = 0;
  for (const auto& [name, layout] : *kernels) {
    if (filled == count) break;
    RCUDA_RETURN_IF_CUDA_ERROR(get(&handles[filled++], owner, name.c_str()));
  }
  return CUDA_SUCCESS;
}

CUresult function_count(unsigned* count, CUmodule module) { return count_in(count, module); }
CUresult kernel_count(unsigned* count, CUlibrary library) { return count_in(count, library); }

CUresult enumerate_functions(CUfunction* functions, unsigned count, CUmodule module) {
  return enumerate(functions, count, module, &module_function);
}

CUresult enumerate_kernels(CUkernel* kernels, unsigned count, CUlibrary library) {
  return enumerate(kernels, count, library, &library_kernel);
}

template <typename Function>
void wrap(Function*& entry, Function* wrapper) {
  if (entry) entry = wrapper;
}

template <typename Function>
void fill(Function*& entry, Function* replacement) {
  if (!entry) entry = replacement;
}

}  // namespace

void keep_kernel_book(api::DriverTable* table) {
  if (table->cuFuncGetName && table->cuKernelGetName && table->cuFuncGetParamInfo &&
      table->cuKernelGetParamInfo && table->cuModuleGetFunctionCount &&
      table->cuModuleEnumerateFunctions && table->cuLibraryGetKernelCount &&
      table->cuLibraryEnumerateKernels) {
    return;
  }
  book = new KernelBook(*table);
  wrap(table->cuModuleLoadData, &module_load);
  wrap(table->cuModuleLoadDataEx, &module_load_ex);
  wrap(table->cuModuleUnload, &module_unload);
  wrap(table->cuModuleGetFunction, &module_function);
  wrap(table->cuLibraryLoadData, &library_load);
  wrap(table->cuLibraryUnload, &library_unload);
  wrap(table->cuLibraryGetKernel, &library_kernel);
  wrap(table->cuLibraryGetModule, &library_module);
  wrap(table->cuKernelGetFunction, &kernel_function);
  fill(table->cuFuncGetName, &function_name);
  fill(table->cuKernelGetName, &kernel_name);
  fill(table->cuFuncGetParamInfo, &function_parameter);
  fill(table->cuKernelGetParamInfo, &kernel_parameter);
  fill(table->cuModuleGetFunctionCount, &function_count);
  fill(table->cuModuleEnumerateFunctions, &enumerate_functions);
  fill(table->cuLibraryGetKernelCount, &kernel_count);
  fill(table->cuLibraryEnumerateKernels, &enumerate_kernels);
}

}  // namespace rcuda::server
