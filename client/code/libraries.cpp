// Libraries and their kernels, and the variables of modules and libraries.

#include <algorithm>
#include <vector>

#include "api/opcodes.h"
#include "client/code/functions.h"
#include "client/code/module_images.h"
#include "client/mirror/mirror.h"
#include "client/objects/arena.h"
#include "client/process/process.h"
#include "client/process/worker_memory.h"
#include "client/route/find_route.h"
#include "common/base/mutex.h"
#include "common/cuda/return_if_error.h"
#include "common/wire/codec.h"
#include "generated/client/forward.h"

namespace rcuda::client {

// ---- variables ---------------------------------------------------------------------------------

namespace {

// Mirrors a managed variable. A library's variable outlives the context in which it is first looked
// up. So the client exchanges the bytes of variables in the primary context, which always exists in
// the worker.
CUresult mirror_variable(const Route& route, CUdeviceptr address, size_t bytes) {
  const Device& device = *Process::get().device(static_cast<CUdevice>(route.device));
  return mirror_at(*route.session, device.primary->id, address, bytes);
}

}  // namespace

CUresult add_variable(Variables& variables, CUdeviceptr address, size_t bytes, const Route& route,
                      bool managed) {
  Registry& registry = Process::get().memory();
  MutexLock lock(variables.mutex);
  const auto known = registry.find(address);
  const auto before = variables.buffer_ids.find(address);
  const bool is_known =
      known && before != variables.buffer_ids.end() && known->buffer_id == before->second;
  if (is_known) {
    if (!managed) return CUDA_SUCCESS;
    if (known->bytes != bytes) return CUDA_ERROR_UNKNOWN;
    registry.update(address, [](Allocation& found) { found.flags = CU_MEM_ATTACH_GLOBAL; });
    return mirror_variable(route, address, bytes);
  }
  Allocation variable;
  variable.base = address;
  variable.bytes = bytes;
  variable.placement = Placement::kGlobal;
  variable.session = route.session;
  variable.context = route.context;
  variable.device = route.device;
  variable.flags = managed ? CU_MEM_ATTACH_GLOBAL : 0;
  RCUDA_RETURN_IF_CUDA_ERROR(record_memory(std::move(variable)));
  if (managed) {
    const CUresult result = mirror_variable(route, address, bytes);
    if (result != CUDA_SUCCESS) {
      (void)registry.remove(address);
      return result;
    }
  }
  if (const auto added = registry.find(address)) {
    variables.buffer_ids[address] = added->buffer_id;
  }
  return CUDA_SUCCESS;
}

void forget_variables(Variables& variables) {
  Registry& registry = Process::get().memory();
  MutexLock lock(variables.mutex);
  for (const auto& [address, buffer_id] : variables.buffer_ids) {
    const auto known = registry.find(address);
    if (!known) unmirror(reinterpret_cast<const void*>(address));
    if (!known || known->buffer_id != buffer_id) continue;  // the variable ended with its context
    if (is_managed(*known)) unmirror(reinterpret_cast<const void*>(address));
    (void)registry.remove(address);
  }
  variables.buffer_ids.clear();
}

// ---- libraries ---------------------------------------------------------------------------------

namespace {

// Held shared while a thread reads kernels that other threads may unload. Locked before
// Kernel::mutex.
SharedMutex& kernels_mutex() {
  static auto* mutex = new SharedMutex;
  return *mutex;
}

// Returns the library's modules in all contexts.
std::vector<Module*> modules_of(const Library& library) {
  return select<Module>([&](const Module& module) {
    return module.library.load(std::memory_order_acquire) == &library;
  });
}

void destroy_kernel(Kernel* kernel) {
  std::unordered_map<uint64_t, Function*> functions;
  {
    MutexLock lock(kernel->mutex);
    functions.swap(kernel->functions);
  }
  for (const auto& [context, function] : functions) retire(function, wire::Kind::kFunction);
  destroy(kernel);
}

// Adds `created` to the library and returns it. If another thread has already added a kernel of
// this name, destroys `created` and returns that kernel.
Kernel* keep_kernel(Library& library, Kernel* created) {
  WriterLock gone(kernels_mutex());
  MutexLock lock(library.mutex);
  const auto [known, is_new] = library.kernels.emplace(created->name, created);
  if (!is_new) destroy(created);
  return known->second;
}

}  // namespace

CUresult id_on(Library& library, Session& session, wire::ObjectId context, wire::ObjectId* id,
               LoadedFunctions* functions) {
  if (library.defect != CUDA_SUCCESS) return library.defect;
  MutexLock lock(library.mutex);
  if (auto found = library.ids.find(&session); found != library.ids.end()) {
    *id = found->second;
    return CUDA_SUCCESS;
  }
  const wire::ObjectId minted = session.ids().mint(wire::Kind::kLibrary);
  if (minted == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = load_image(session, context, wire::Custom::kLibraryLoad, minted,
                                     library.image, library.options, functions);
  if (result != CUDA_SUCCESS) {
    session.ids().release(wire::Kind::kLibrary, minted);
    return result;
  }
  library.ids.emplace(&session, minted);
  *id = minted;
  return CUDA_SUCCESS;
}

CUresult library_module(Library& library, const Route& route, CUmodule* module) {
  const InContext scope(route);
  CUmodule named = nullptr;
  RCUDA_RETURN_IF_CUDA_ERROR(
      forward_cuLibraryGetModule(&named, reinterpret_cast<CUlibrary>(&library)));
  auto* found = find<Module>(named);
  if (!found) return CUDA_ERROR_UNKNOWN;
  const Library* const known = found->library.load(std::memory_order_acquire);
  if (!found->is_of_library() || (known && known != &library)) {
    return route.session->lose(Status(Code::kProtocol,
                                      "the worker's reply to cuLibraryGetModule names a module "
                                      "that does not belong to this library"));
  }
  found->library.store(&library, std::memory_order_release);
  *module = named;
  return CUDA_SUCCESS;
}

CUresult find_kernel(Library& library, const Route& route, const char* name, Kernel** kernel) {
  {
    MutexLock lock(library.mutex);
    if (auto found = library.kernels.find(name); found != library.kernels.end()) {
      *kernel = found->second;
      return CUDA_SUCCESS;
    }
  }
  auto* created = create<Kernel>({}, library, name);
  if (!created) return CUDA_ERROR_OUT_OF_MEMORY;
  FunctionInfo* info;
  if (CUresult result = info_on(*created, route, &info); result != CUDA_SUCCESS) {
    WriterLock gone(kernels_mutex());
    destroy(created);
    return result;
  }
  *kernel = keep_kernel(library, created);
  return CUDA_SUCCESS;
}

void add_kernel(Library& library, const Route& route, LoadedFunction function) {
  auto* created = create<Kernel>({}, library, function.name);
  if (!created) return;
  {
    MutexLock lock(created->mutex);  // other threads read the kernels of all libraries
    std::unique_ptr<FunctionInfo>& info = created->infos[route.device];
    info = std::move(function.info);
    created->first_device = route.device;
    created->first_info.store(info.get(), std::memory_order_release);
  }
  keep_kernel(library, created);
}

void unload(Library& library) {
  forget_variables(library.variables);
  std::unordered_map<std::string, Kernel*> kernels;
  std::unordered_map<Session*, wire::ObjectId> ids;
  {
    MutexLock lock(library.mutex);
    kernels.swap(library.kernels);
    ids.swap(library.ids);
  }
  // Destroy the kernels before the unload: after it, the worker reuses the ids of the library's
  // functions.
  {
    WriterLock gone(kernels_mutex());
    for (const auto& [name, kernel] : kernels) destroy_kernel(kernel);
  }
  for (Module* module : modules_of(library)) retire(module, wire::Kind::kModule);
  for (const auto& [session, id] : ids) {
    wire::Encoder body;
    body.value(id);
    (void)session->post(session->in_context(0), {api::Opcode::cuLibraryUnload, body.body()});
    session->ids().release(wire::Kind::kLibrary, id);
  }
  destroy(&library);
}

// ---- kernels -----------------------------------------------------------------------------------

CUresult info_on(Kernel& kernel, const Route& route, FunctionInfo** info) {
  if (FunctionInfo* first = kernel.first_info.load(std::memory_order_acquire);
      first && kernel.first_device == route.device) {
    *info = first;
    return CUDA_SUCCESS;
  }
  MutexLock lock(kernel.mutex);
  std::unique_ptr<FunctionInfo>& known = kernel.infos[route.device];
  if (!known) {
    wire::ObjectId library_id;
    CUresult result = id_on(kernel.library, *route.session, route.context, &library_id);
    if (result == CUDA_SUCCESS) {
      result = ask_function(*route.session, route.context, library_id, true, kernel.name.c_str(),
                            &known);
    }
    if (result != CUDA_SUCCESS) {
      kernel.infos.erase(route.device);
      return result;
    }
  }
  if (!kernel.first_info.load(std::memory_order_relaxed)) {
    kernel.first_device = route.device;
    kernel.first_info.store(known.get(),
                            std::memory_order_release);  // pairs with the acquire load
  }
  *info = known.get();
  return CUDA_SUCCESS;
}

void note_attribute(Kernel& kernel, const Route& route, int which, int value) {
  MutexLock lock(kernel.mutex);
  if (const auto found = kernel.infos.find(route.device); found != kernel.infos.end()) {
    note_attribute(*found->second, which, value);
  }
  for (const auto& [key, function] : kernel.functions) {
    if (key >> 32 == route.device) note_attribute(*function->info, which, value);
  }
}

namespace {

// Copies the kernel's data for one of its functions, because the function has its own attributes.
std::unique_ptr<FunctionInfo> copy_of(const FunctionInfo& info, const Function& function) {
  auto copy = std::make_unique<FunctionInfo>();
  copy->session = function.session;
  copy->id = function.id;
  copy->parameters = info.parameters;
  copy->parameter_bytes = info.parameter_bytes;
  for (size_t i = 0; i < copy->attributes.size(); ++i) {
    copy->attributes[i].store(info.attributes[i].load(std::memory_order_relaxed),
                              std::memory_order_relaxed);
  }
  return copy;
}

}  // namespace

CUresult function_in(Kernel& kernel, const Route& route, Function** function) {
  const uint64_t key = static_cast<uint64_t>(route.device) << 32 | route.context;
  {
    MutexLock lock(kernel.mutex);
    if (auto found = kernel.functions.find(key); found != kernel.functions.end()) {
      *function = found->second;
      return CUDA_SUCCESS;
    }
  }
  FunctionInfo* info;
  RCUDA_RETURN_IF_CUDA_ERROR(info_on(kernel, route, &info));
  const InContext scope(route);
  CUfunction created = nullptr;
  RCUDA_RETURN_IF_CUDA_ERROR(
      forward_cuKernelGetFunction(&created, reinterpret_cast<CUkernel>(&kernel)));
  auto* named = find<Function>(created);
  if (!named) return CUDA_ERROR_UNKNOWN;
  MutexLock lock(kernel.mutex);
  // A worker must not return one function for two kernels: both kernels would destroy it.
  if (named->info && named->kernel != &kernel) {
    return route.session->lose(
        Status(Code::kProtocol,
               "the worker's reply to cuKernelGetFunction names a function of another kernel"));
  }
  if (!named->info) {
    named->kernel = &kernel;
    named->info = copy_of(*info, *named);
  }
  kernel.functions[key] = named;
  *function = named;
  return CUDA_SUCCESS;
}

Kernel* find_kernel(const Session& session, wire::ObjectId id) {
  Kernel* found = nullptr;
  ReaderLock alive(kernels_mutex());
  for_each<Kernel>([&](Kernel& kernel) {
    MutexLock lock(kernel.mutex);
    for (const auto& [device, info] : kernel.infos) {
      if (info && info->session == &session && info->id == id) found = &kernel;
    }
  });
  return found;
}

void forget_kernels_in(const Session& session, wire::ObjectId context) {
  ReaderLock alive(kernels_mutex());
  for_each<Kernel>([&](Kernel& kernel) {
    MutexLock lock(kernel.mutex);
    std::erase_if(kernel.functions, [&](const auto& known) {
      return known.second->session == &session && known.second->context == context;
    });
  });
}

}  // namespace rcuda::client
