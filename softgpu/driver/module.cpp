#include "softgpu/driver/module.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "common/base/log.h"
#include "common/image/image.h"
#include "common/image/unpack.h"
#include "softgpu/driver/config.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/jit_options.h"
#include "softgpu/driver/link.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/texture_reference.h"
#include "softgpu/ptx/parser.h"

namespace softgpu::driver {
namespace {

using rcuda::Code;
using rcuda::Result;
using rcuda::Status;

// Logs a loading error, writes it to the caller's buffer, and returns its CUresult.
CUresult report(const Status& status, CUresult otherwise, JitLog* log) {
  RCUDA_WARN("module not loaded: %s", status.message().c_str());
  if (log) log->error(status.message());
  switch (status.code()) {
    case Code::kOutOfMemory:
      return CUDA_ERROR_OUT_OF_MEMORY;
    default:
      return otherwise;
  }
}

CUresult parse_units(const std::vector<std::string>& texts,
                     std::vector<std::unique_ptr<ptx::Module>>* units, JitLog* log) {
  for (const std::string& text : texts) {
    Result<std::unique_ptr<ptx::Module>> unit = ptx::parse(text);
    if (!unit) return report(unit.status(), CUDA_ERROR_INVALID_PTX, log);
    units->push_back(std::move(unit).value());
  }
  return CUDA_SUCCESS;
}

void release_global(CUdeviceptr address) {
  std::shared_ptr<Allocation> gone = memory_registry().remove(address, [](const Allocation& a) {
    return a.kind == MemoryKind::kModule || a.kind == MemoryKind::kManaged;
  });
  if (gone) release_memory(*gone);
}

// Globals live on the context's device, __managed__ variables in host memory.
CUdeviceptr allocate_global(Context& context, size_t bytes, bool managed) {
  CUdeviceptr address = 0;
  bytes = std::max<size_t>(bytes, 1);
  const CUresult result =
      managed ? allocate_host_memory(context, bytes, MemoryKind::kManaged, CU_MEM_ATTACH_GLOBAL,
                                     &address)
              : allocate_device_memory(context, bytes, MemoryKind::kModule, &address);
  if (result != CUDA_SUCCESS) return 0;
  memory_registry().find_base(address)->of_module = true;
  return address;
}

CUresult load_program(std::vector<std::unique_ptr<ptx::Module>> units,
                      const exec::DeviceAllocator& allocator, JitLog* log,
                      std::unique_ptr<exec::Program>* program) {
  Result<std::unique_ptr<exec::Program>> loaded = exec::load(std::move(units), allocator);
  if (!loaded) return report(loaded.status(), CUDA_ERROR_INVALID_PTX, log);
  *program = std::move(loaded).value();
  return CUDA_SUCCESS;
}

}  // namespace

CUresult read_file(const char* path, std::string* contents) {
  if (!*path) return CUDA_ERROR_INVALID_VALUE;
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  // A folder can be opened, but a read throws.
  try {
    contents->assign(std::istreambuf_iterator<char>(file), {});
  } catch (const std::ios_base::failure&) {
    return CUDA_ERROR_OUT_OF_MEMORY;  // as NVIDIA's driver does for a folder
  }
  return CUDA_SUCCESS;
}

CUresult read_image(const Result<rcuda::image::Image>& image, std::vector<std::string>* units,
                    JitLog* log) {
  if (!image) return report(image.status(), CUDA_ERROR_INVALID_IMAGE, log);
  if (image->format == rcuda::image::Format::kElf && linked_units(image->parts[0], units)) {
    return CUDA_SUCCESS;
  }
  Result<std::vector<std::string>> found = rcuda::image::ptx_units(*image, kComputeCapability);
  if (!found) {
    return report(found.status(),
                  found.status().code() == Code::kNotFound ? CUDA_ERROR_NO_BINARY_FOR_GPU
                                                           : CUDA_ERROR_INVALID_IMAGE,
                  log);
  }
  *units = std::move(found).value();
  return CUDA_SUCCESS;
}

CUresult check_ptx(const std::string& text, JitLog* log) {
  std::vector<std::unique_ptr<ptx::Module>> units;
  return parse_units({text}, &units, log);
}

CUresult load_module(Context& context, const std::vector<std::string>& texts, JitLog* log,
                     std::shared_ptr<Module>* module) {
  std::vector<std::unique_ptr<ptx::Module>> units;
  if (CUresult result = parse_units(texts, &units, log)) return result;
  exec::DeviceAllocator allocator;
  allocator.allocate = [&context](size_t bytes, bool managed) {
    return allocate_global(context, bytes, managed);
  };
  allocator.release = release_global;
  std::unique_ptr<exec::Program> program;
  if (CUresult result = load_program(std::move(units), allocator, log, &program)) {
    return result;
  }
  *module = std::make_shared<Module>(context.shared_from_this(), std::move(program), nullptr);
  handle_table<Module>().insert(*module);
  return CUDA_SUCCESS;
}

Context& Function::context() const { return module_->context(); }

Module::Module(std::shared_ptr<Context> context, std::unique_ptr<exec::Program> program,
               Library* library)
    : context_(std::move(context)), program_(std::move(program)), library_(library) {}

Module::~Module() = default;

std::shared_ptr<Function> Module::function(const std::string& name) {
  std::lock_guard lock(mutex_);
  if (retired_) return nullptr;
  std::weak_ptr<Function>& known = functions_[name];
  if (std::shared_ptr<Function> function = known.lock()) return function;
  const exec::Kernel* kernel = program_->find_kernel(name);
  if (!kernel) {
    functions_.erase(name);
    return nullptr;
  }
  auto function = std::make_shared<Function>(shared_from_this(), *kernel);
  known = function;
  handle_table<Function>().insert(function);
  return function;
}

void Module::retire() {
  handle_table<Module>().remove(this);
  drop_references_of(shared_from_this());
  std::map<std::string, std::weak_ptr<Function>> functions;
  {
    std::lock_guard lock(mutex_);
    retired_ = true;
    functions.swap(functions_);
  }
  for (auto& [name, weak] : functions) {
    if (std::shared_ptr<Function> function = weak.lock()) {
      handle_table<Function>().remove(function.get());
    }
  }
}

Library::~Library() {
  for (const auto& [address, bytes] : managed_) release_global(address);
}

CUresult Library::parse_locked(JitLog* log) {
  if (!ready_.empty()) return CUDA_SUCCESS;
  std::vector<std::unique_ptr<ptx::Module>> units;
  if (CUresult result = parse_units(units_, &units, log)) return result;
  if (!parsed_) {
    for (const std::unique_ptr<ptx::Module>& unit : units) {
      for (const ptx::Function& function : unit->functions) {
        if (function.is_entry && function.is_defined) names_.emplace_back(function.name);
      }
    }
    parsed_ = true;
  }
  ready_ = std::move(units);
  return CUDA_SUCCESS;
}

CUresult Library::kernel_names(std::vector<std::string>* names, JitLog* log) {
  std::lock_guard lock(mutex_);
  if (!parsed_) {
    if (CUresult result = parse_locked(log)) return result;
  }
  *names = names_;
  return CUDA_SUCCESS;
}

CUresult Library::kernel(const std::string& name, std::shared_ptr<Kernel>* kernel) {
  if (defect_ != CUDA_SUCCESS) return defect_;
  std::lock_guard lock(mutex_);
  if (!parsed_) {
    if (CUresult result = parse_locked(nullptr)) return result;
  }
  if (std::find(names_.begin(), names_.end(), name) == names_.end()) return CUDA_ERROR_NOT_FOUND;
  std::shared_ptr<Kernel>& known = kernels_[name];
  if (!known) {
    known = std::make_shared<Kernel>(shared_from_this(), name);
    handle_table<Kernel>().insert(known);
  }
  *kernel = known;
  return CUDA_SUCCESS;
}

CUresult Library::module_in(Context& context, std::shared_ptr<Module>* module) {
  if (defect_ != CUDA_SUCCESS) return defect_;
  std::lock_guard lock(mutex_);
  std::shared_ptr<Module>& instance = instances_[&context];
  if (!instance) {
    if (CUresult result = parse_locked(nullptr)) {
      instances_.erase(&context);
      return result;
    }
    // All contexts share the memory of a managed variable. Loading a later instance initialises the
    // variables again, so their content is saved here and restored below.
    size_t next_managed = 0;
    std::vector<std::vector<std::byte>> contents;
    for (const auto& [address, bytes] : managed_) {
      const auto* begin = reinterpret_cast<const std::byte*>(address);
      contents.emplace_back(begin, begin + bytes);
    }
    exec::DeviceAllocator allocator;
    allocator.allocate = [&](size_t bytes, bool managed) -> CUdeviceptr {
      if (!managed) return allocate_global(context, bytes, false);
      if (next_managed < managed_.size()) return managed_[next_managed++].first;
      const CUdeviceptr address = allocate_global(context, bytes, true);
      if (address == 0) return 0;
      if (std::shared_ptr<Allocation> allocation = memory_registry().find_base(address)) {
        allocation->owner = nullptr;  // survives the end of this context
      }
      managed_.emplace_back(address, bytes);
      ++next_managed;
      return address;
    };
    allocator.release = [](CUdeviceptr address) {
      std::shared_ptr<Allocation> allocation = memory_registry().find_base(address);
      if (allocation && allocation->kind == MemoryKind::kModule) release_global(address);
    };
    std::unique_ptr<exec::Program> program;
    std::vector<std::unique_ptr<ptx::Module>> units = std::move(ready_);
    ready_.clear();
    const CUresult result = load_program(std::move(units), allocator, nullptr, &program);
    for (size_t i = 0; i < contents.size(); ++i) {
      std::copy(contents[i].begin(), contents[i].end(),
                reinterpret_cast<std::byte*>(managed_[i].first));
    }
    if (result != CUDA_SUCCESS) {
      instances_.erase(&context);
      return result;
    }
    instance = std::make_shared<Module>(context.shared_from_this(), std::move(program), this);
    handle_table<Module>().insert(instance);
  }
  *module = instance;
  return CUDA_SUCCESS;
}

std::vector<std::shared_ptr<Context>> Library::contexts() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Context>> all;
  for (const auto& [context, module] : instances_) {
    all.push_back(module->context().shared_from_this());
  }
  return all;
}

void Library::drop_instances(const Context* context) {
  std::vector<std::shared_ptr<Module>> dropped;
  std::map<std::string, std::shared_ptr<Kernel>> kernels;
  {
    std::lock_guard lock(mutex_);
    for (auto it = instances_.begin(); it != instances_.end();) {
      if (context && it->first != context) {
        ++it;
        continue;
      }
      dropped.push_back(std::move(it->second));
      it = instances_.erase(it);
    }
    if (!context) kernels.swap(kernels_);  // the kernels hold references to the library
  }
  for (const std::shared_ptr<Module>& module : dropped) module->retire();
  for (const auto& [name, kernel] : kernels) handle_table<Kernel>().remove(kernel.get());
}

void FunctionSettings::take_over(const FunctionSettings& other) {
  max_dynamic_shared_bytes.store(other.max_dynamic_shared_bytes);
  preferred_carveout.store(other.preferred_carveout);
  cluster_width.store(other.cluster_width);
  cluster_height.store(other.cluster_height);
  cluster_depth.store(other.cluster_depth);
  non_portable_cluster_size.store(other.non_portable_cluster_size);
  cluster_scheduling.store(other.cluster_scheduling);
  cache_config.store(other.cache_config);
}

Kernel::Kernel(std::shared_ptr<Library> library, std::string name)
    : library_(std::move(library)),
      name_(std::move(name)),
      settings_(static_cast<size_t>(kMaxDevices)) {}

CUresult Kernel::function_in(Context& context, std::shared_ptr<Function>* function) {
  {
    std::lock_guard lock(mutex_);
    auto known = functions_.find(&context);
    if (known != functions_.end()) {
      *function = known->second.lock();
      // The entry may be of an earlier context at this address. Its functions have left the table.
      if (*function && handle_table<Function>().find(function->get())) return CUDA_SUCCESS;
    }
  }
  std::shared_ptr<Module> module;
  if (CUresult result = library_->module_in(context, &module)) return result;
  *function = module->function(name_);
  if (!*function) return CUDA_ERROR_NOT_FOUND;
  std::lock_guard lock(mutex_);
  (*function)->settings().take_over(settings(context.device().ordinal()));
  functions_[&context] = *function;
  return CUDA_SUCCESS;
}

void Kernel::pass_on_settings(int device) {
  std::lock_guard lock(mutex_);
  for (const auto& [context, known] : functions_) {
    const std::shared_ptr<Function> function = known.lock();
    if (function && function->context().device().ordinal() == device) {
      function->settings().take_over(settings(device));
    }
  }
}

CUresult function_from_handle(CUfunction handle, std::shared_ptr<Function>* function) {
  *function = handle_table<Function>().find(handle);
  if (*function) return CUDA_SUCCESS;
  std::shared_ptr<Kernel> kernel = handle_table<Kernel>().find(handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  return kernel->function_in(*context, function);
}

std::shared_ptr<Kernel> kernel_from_handle(CUkernel handle) {
  return handle_table<Kernel>().find(handle);
}
std::shared_ptr<Module> module_from_handle(CUmodule handle) {
  return handle_table<Module>().find(handle);
}
std::shared_ptr<Library> library_from_handle(CUlibrary handle) {
  return handle_table<Library>().find(handle);
}

void unload_modules_of(Context& context) {
  std::vector<std::shared_ptr<Library>> libraries;
  std::vector<std::shared_ptr<Module>> modules;
  handle_table<Library>().for_each(
      [&](Library& library) { libraries.push_back(library.shared_from_this()); });
  for (const std::shared_ptr<Library>& library : libraries) library->drop_instances(&context);
  modules = handle_table<Module>().remove_if(
      [&](const Module& module) { return &module.context() == &context; });
  for (const std::shared_ptr<Module>& module : modules) module->retire();
}

}  // namespace softgpu::driver
