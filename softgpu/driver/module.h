// Module, Library, Kernel and Function: loaded code and its handles.
//
// A Library (cuLibraryLoadData) is code without a context. It is loaded into a context, as a
// Module, when something of it is first used there. A Module (cuModuleLoadData) belongs to one
// context. A Kernel is an entry point of a library, by name. A Function is an entry point of a
// Module, ready to launch. CUfunction, CUkernel, CUmodule and CUlibrary are addresses of these
// objects. The *_from_handle functions check them and return a reference, so an unload by another
// thread cannot destroy the object. Any thread. Loading parses code and may take long; nothing else
// blocks.
//
// module_api.cpp and library_api.cpp define cuModule*, cuLibrary*, cuLink*, cuKernelGetFunction,
// cuKernelGetLibrary, cuKernelGetName, cuFuncGetModule, cuFuncGetName, cuFuncLoad and
// cuFuncIsLoaded. The launch layer defines the launches, and the calls for attributes, parameter
// info, cache configuration and occupancy of functions and kernels (cuFuncGetAttribute,
// cuKernelGetAttribute, cuKernelGetParamInfo, ...).
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <cuda.h>

#include "common/cuda/shaped_launch.h"
#include "common/image/image.h"
#include "softgpu/exec/program.h"

namespace softgpu::driver {

class Context;
class JitLog;
class Kernel;
class Library;
class Module;

// Settings of cuFuncSetAttribute and cuFuncSetCacheConfig. A kernel has settings per device
// (cuKernelSetAttribute), which outlive every context and are passed on to the kernel's functions.
// -1: not set.
struct FunctionSettings {
  void take_over(const FunctionSettings& other);

  std::atomic<int> max_dynamic_shared_bytes{-1};
  std::atomic<int> preferred_carveout{-1};
  std::atomic<int> cluster_width{-1}, cluster_height{-1}, cluster_depth{-1};
  std::atomic<int> non_portable_cluster_size{-1};
  std::atomic<int> cluster_scheduling{-1};
  std::atomic<CUfunc_cache> cache_config{CU_FUNC_CACHE_PREFER_NONE};
};

class Function {
 public:
  Function(std::shared_ptr<Module> module, const exec::Kernel& kernel)
      : module_(std::move(module)), kernel_(kernel) {}
  CUfunction handle() { return reinterpret_cast<CUfunction>(this); }
  const exec::Kernel& kernel() const { return kernel_; }
  const std::shared_ptr<Module>& module() const { return module_; }
  Context& context() const;
  FunctionSettings& settings() { return settings_; }
  rcuda::cuda::ShapedLaunch& shaped() { return shaped_; }

 private:
  std::shared_ptr<Module> module_;  // keeps the code alive while queued work uses it
  const exec::Kernel& kernel_;
  FunctionSettings settings_;
  rcuda::cuda::ShapedLaunch shaped_;
};

class Module : public std::enable_shared_from_this<Module> {
 public:
  // `library` is nullptr for a module without a library.
  Module(std::shared_ptr<Context> context, std::unique_ptr<exec::Program> program,
         Library* library);
  ~Module();
  CUmodule handle() { return reinterpret_cast<CUmodule>(this); }
  Context& context() const { return *context_; }
  exec::Program& program() { return *program_; }
  Library* library() const { return library_; }
  // The module's only Function of that name; nullptr if there is no such kernel.
  std::shared_ptr<Function> function(const std::string& name);
  // Invalidates the module's handle and those of its functions, when it is unloaded.
  void retire();

 private:
  const std::shared_ptr<Context> context_;
  const std::unique_ptr<exec::Program> program_;
  Library* const library_;
  std::mutex mutex_;
  bool retired_ = false;
  std::map<std::string, std::weak_ptr<Function>> functions_;  // owned by the handle table
};

// A library's code: the PTX of its translation units, parsed when it is first needed.
class Library : public std::enable_shared_from_this<Library> {
 public:
  // `defect`: if it is an error, kernel() and module_in() return it.
  explicit Library(std::vector<std::string> units, CUresult defect = CUDA_SUCCESS)
      : units_(std::move(units)), defect_(defect) {}
  ~Library();
  CUlibrary handle() { return reinterpret_cast<CUlibrary>(this); }
  // The names of its kernels, in order of definition. CUDA_ERROR_INVALID_PTX if parsing fails.
  CUresult kernel_names(std::vector<std::string>* names, JitLog* log = nullptr);
  // CUDA_ERROR_NOT_FOUND if there is no such kernel.
  CUresult kernel(const std::string& name, std::shared_ptr<Kernel>* kernel);
  // The library's instance in `context`, loaded now if needed.
  CUresult module_in(Context& context, std::shared_ptr<Module>* module);
  // The contexts that have an instance.
  std::vector<std::shared_ptr<Context>> contexts();
  // Drops the instance in `context`, which is being torn down. nullptr: the library is unloaded, so
  // all its instances are dropped.
  void drop_instances(const Context* context);

 private:
  CUresult parse_locked(JitLog* log);

  const std::vector<std::string> units_;
  const CUresult defect_;
  std::mutex mutex_;
  bool parsed_ = false;
  std::vector<std::unique_ptr<ptx::Module>> ready_;  // parsed and not yet used
  std::vector<std::string> names_;
  std::map<std::string, std::shared_ptr<Kernel>> kernels_;
  std::map<const Context*, std::shared_ptr<Module>> instances_;
  // __managed__ variables: shared by the instances of all contexts, in order of allocation.
  std::vector<std::pair<CUdeviceptr, size_t>> managed_;
};

class Kernel {
 public:
  Kernel(std::shared_ptr<Library> library, std::string name);
  CUkernel handle() { return reinterpret_cast<CUkernel>(this); }
  const std::shared_ptr<Library>& library() const { return library_; }
  const std::string& name() const { return name_; }
  // The function in `context`; loads the library there if needed.
  CUresult function_in(Context& context, std::shared_ptr<Function>* function);
  FunctionSettings& settings(int device) { return settings_[static_cast<size_t>(device)]; }
  // Passes the settings on to its functions in the contexts of that device.
  void pass_on_settings(int device);

 private:
  const std::shared_ptr<Library> library_;
  const std::string name_;
  std::vector<FunctionSettings> settings_;  // by device
  std::mutex mutex_;
  std::map<const Context*, std::weak_ptr<Function>> functions_;
};

// The function that `handle` names. A CUkernel cast to CUfunction, as the CUDA runtime passes it,
// gives the kernel's function in the current context. CUDA_ERROR_INVALID_HANDLE if it is neither.
CUresult function_from_handle(CUfunction handle, std::shared_ptr<Function>* function);
std::shared_ptr<Kernel> kernel_from_handle(CUkernel handle);
std::shared_ptr<Module> module_from_handle(CUmodule handle);
std::shared_ptr<Library> library_from_handle(CUlibrary handle);

// The content of a file; CUDA_ERROR_INVALID_VALUE for an empty path, CUDA_ERROR_FILE_NOT_FOUND if
// the file cannot be opened, CUDA_ERROR_OUT_OF_MEMORY for a folder.
CUresult read_file(const char* path, std::string* contents);
// The PTX of an image that an application passed: a fatbin, an ELF image made by cuLinkComplete, or
// PTX text.
CUresult read_image(const rcuda::Result<rcuda::image::Image>& image,
                    std::vector<std::string>* units, JitLog* log);
// CUDA_ERROR_INVALID_PTX, with a line in the log, if the text cannot be parsed.
CUresult check_ptx(const std::string& text, JitLog* log);
// Loads PTX into a context as a module without a library, and registers it.
CUresult load_module(Context& context, const std::vector<std::string>& units, JitLog* log,
                     std::shared_ptr<Module>* module);

// Unloads all modules of a context that is being torn down, including instances of libraries.
void unload_modules_of(Context& context);

}  // namespace softgpu::driver
