#include "client/session/functions.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>

#include "api/opcodes.h"
#include "client/memory/mirror.h"
#include "client/session/marshal.h"
#include "client/session/process.h"
#include "common/base/log.h"
#include "common/image/image.h"
#include "common/wire/codec.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

// Every value an option carries is a number except these, which are the application's own memory.
bool is_buffer(CUjit_option option) {
  return option == CU_JIT_INFO_LOG_BUFFER || option == CU_JIT_ERROR_LOG_BUFFER ||
         option == CU_JIT_WALL_TIME || option == CU_JIT_GLOBAL_SYMBOL_NAMES ||
         option == CU_JIT_GLOBAL_SYMBOL_ADDRESSES;
}

struct LogBuffer {
  char* text = nullptr;
  size_t capacity = 0;
  void** size_option = nullptr;  // gets the number of bytes written, terminator included
};

struct LogBuffers {
  LogBuffer info, error;
};

LogBuffers log_buffers(const JitOptions& options) {
  LogBuffers buffers;
  for (size_t i = 0; i < options.keys.size(); ++i) {
    void* const* value = &options.values[i];
    switch (options.keys[i]) {
      case CU_JIT_INFO_LOG_BUFFER:
        buffers.info.text = static_cast<char*>(*value);
        break;
      case CU_JIT_ERROR_LOG_BUFFER:
        buffers.error.text = static_cast<char*>(*value);
        break;
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        buffers.info.capacity = reinterpret_cast<uintptr_t>(*value) & 0xffffffffu;
        buffers.info.size_option = const_cast<void**>(value);
        break;
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        buffers.error.capacity = reinterpret_cast<uintptr_t>(*value) & 0xffffffffu;
        buffers.error.size_option = const_cast<void**>(value);
        break;
      default:
        break;
    }
  }
  return buffers;
}

void fill_log(const LogBuffer& buffer, std::span<const char> text) {
  if (!buffer.text || buffer.capacity == 0) return;
  const size_t length = std::min(text.size(), buffer.capacity - 1);
  std::memcpy(buffer.text, text.data(), length);
  buffer.text[length] = '\0';
}

// ModuleLoadReply without its header, then the two texts.
void fill_logs(const LogBuffers& buffers, std::span<const std::byte> body) {
  uint32_t lengths[2];
  if (body.size() < sizeof lengths) return;
  std::memcpy(lengths, body.data(), sizeof lengths);
  body = body.subspan(sizeof lengths);
  if (lengths[0] > body.size() || lengths[1] > body.size() - lengths[0]) return;
  const char* text = reinterpret_cast<const char*>(body.data());
  fill_log(buffers.info, {text, lengths[0]});
  fill_log(buffers.error, {text + lengths[0], lengths[1]});
}

}  // namespace

CUresult measure_image(const void* pointer, std::optional<size_t> bytes, ImageParts* image) {
  if (!pointer && !bytes) return CUDA_ERROR_INVALID_VALUE;
  Result<image::Image> measured =
      bytes ? image::inspect({static_cast<const std::byte*>(pointer), *bytes})
            : image::measure(pointer);
  if (!measured) {
    RCUDA_DEBUG("a module image was refused: %s", measured.status().message().c_str());
    return CUDA_ERROR_INVALID_IMAGE;
  }
  for (const std::span<const std::byte> part : measured->parts) {
    image->parts.push_back(part);
    image->hashes.push_back(hash_image(part));
  }
  return CUDA_SUCCESS;
}

CUresult load_image(Session& session, wire::ObjectId context, wire::Custom opcode,
                    wire::ObjectId id, const ImageParts& image, const JitOptions& options) {
  for (size_t i = 0; i < image.parts.size(); ++i) {
    if (CUresult result = send_image(session, context, image.hashes[i], image.parts[i]);
        result != CUDA_SUCCESS) {
      return result;
    }
  }
  const LogBuffers buffers = log_buffers(options);
  constexpr size_t kLogLimit = 24u << 10;  // of each: both fit a large reply slot
  struct Option {
    uint32_t key, reserved;
    uint64_t value;
  };
  std::vector<Option> values, library_values;
  for (size_t i = 0; i < options.keys.size(); ++i) {
    if (is_buffer(options.keys[i])) continue;
    values.push_back({static_cast<uint32_t>(options.keys[i]), 0,
                      reinterpret_cast<uintptr_t>(options.values[i])});
  }
  for (size_t i = 0; i < options.library_keys.size(); ++i) {
    if (options.library_keys[i] == CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE) continue;
    library_values.push_back({static_cast<uint32_t>(options.library_keys[i]), 0,
                              reinterpret_cast<uintptr_t>(options.library_values[i])});
  }
  wire::ModuleLoadBody body{};
  body.object = id;
  body.image_count = static_cast<uint32_t>(image.hashes.size());
  body.option_count = static_cast<uint32_t>(values.size());
  body.library_option_count = static_cast<uint32_t>(library_values.size());
  body.info_log_bytes = static_cast<uint32_t>(std::min(buffers.info.capacity, kLogLimit));
  body.error_log_bytes = static_cast<uint32_t>(std::min(buffers.error.capacity, kLogLimit));
  std::vector<std::byte> tail(image.hashes.size() * sizeof(ImageHash) +
                              (values.size() + library_values.size()) * sizeof(Option));
  std::byte* at = tail.data();
  const auto put = [&at](const void* from, size_t bytes) {
    if (bytes) std::memcpy(at, from, bytes);
    at += bytes;
  };
  put(image.hashes.data(), image.hashes.size() * sizeof(ImageHash));
  put(values.data(), values.size() * sizeof(Option));
  put(library_values.data(), library_values.size() * sizeof(Option));
  Reply reply;
  const CUresult result =
      session.call(context, static_cast<uint16_t>(opcode), std::as_bytes(std::span(&body, 1)), tail,
                   32 + body.info_log_bytes + body.error_log_bytes, &reply);
  fill_logs(buffers, reply.body());
  return result;
}

void note_attribute(FunctionInfo& info, int which, int value) {
  if (which < 0 || which >= static_cast<int>(info.attributes.size())) return;
  info.attributes[static_cast<size_t>(which)].store(value, std::memory_order_relaxed);
}

CUresult ask_function(Session& session, wire::ObjectId context, wire::ObjectId owner,
                      bool is_kernel, const char* name, std::unique_ptr<FunctionInfo>* info) {
  const size_t length = std::strlen(name);
  if (length > 32768) return CUDA_ERROR_NOT_FOUND;
  const wire::Kind kind = is_kernel ? wire::Kind::kKernel : wire::Kind::kFunction;
  auto found = std::make_unique<FunctionInfo>();
  found->session = &session;
  found->id = session.ids().mint(kind);
  if (found->id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  wire::FunctionInfoBody body{};
  body.object = found->id;
  body.owner = owner;
  body.is_kernel = is_kernel;
  body.name_bytes = static_cast<uint16_t>(length);
  Reply reply;
  const CUresult result =
      session.call(context, static_cast<uint16_t>(wire::Custom::kFunctionInfo),
                   std::as_bytes(std::span(&body, 1)), std::as_bytes(std::span(name, length)),
                   wire::ClientWindow::kLargeReplyBytes - 64, &reply);
  if (result != CUDA_SUCCESS) {
    session.ids().release(kind, found->id);
    return result;
  }
  // FunctionInfoReply without its header, then the parameters.
  struct Fixed {
    uint32_t parameter_count, reserved;
    int32_t attributes[wire::kFunctionAttributeCount];
  } fixed;
  const std::span<const std::byte> answer = reply.body();
  if (answer.size() < sizeof fixed) return CUDA_ERROR_UNKNOWN;
  std::memcpy(&fixed, answer.data(), sizeof fixed);
  if (fixed.parameter_count > (answer.size() - sizeof fixed) / sizeof(wire::ParameterInfo)) {
    return CUDA_ERROR_UNKNOWN;
  }
  found->parameters.resize(fixed.parameter_count);
  if (fixed.parameter_count) {
    std::memcpy(found->parameters.data(), answer.data() + sizeof fixed,
                fixed.parameter_count * sizeof(wire::ParameterInfo));
  }
  for (const wire::ParameterInfo& parameter : found->parameters) {
    const uint64_t end = uint64_t{parameter.offset_bytes} + parameter.size_bytes;
    if (end > wire::kMaxParameterBytes) return CUDA_ERROR_UNKNOWN;
    found->parameter_bytes = std::max(found->parameter_bytes, static_cast<uint32_t>(end));
  }
  for (size_t i = 0; i < found->attributes.size(); ++i) {
    found->attributes[i].store(fixed.attributes[i], std::memory_order_relaxed);
  }
  *info = std::move(found);
  return CUDA_SUCCESS;
}

namespace {

// Held shared by whoever looks at kernels that others may be unloading. Before Kernel::mutex_.
std::shared_mutex& kernels_mutex() {
  static auto* mutex = new std::shared_mutex;
  return *mutex;
}

}  // namespace

// ---- variables ---------------------------------------------------------------------------------

void Variables::add(CUdeviceptr address, size_t bytes, const Target& target, bool managed) {
  Registry& registry = Process::get().memory();
  std::lock_guard lock(mutex_);
  const auto known = registry.find(address);
  const auto before = buffer_ids_.find(address);
  if (known && before != buffer_ids_.end() && known->buffer_id == before->second) {
    if (managed) registry.set_flags(address, CU_MEM_ATTACH_GLOBAL);
    return;
  }
  Allocation variable;
  variable.base = address;
  variable.bytes = bytes;
  variable.placement = Placement::kGlobal;
  variable.session = target.session;
  variable.context = target.context;
  variable.device = target.device;
  variable.flags = managed ? CU_MEM_ATTACH_GLOBAL : 0;
  if (!registry.add(std::move(variable))) return;
  if (const auto added = registry.find(address)) buffer_ids_[address] = added->buffer_id;
}

void Variables::forget() {
  Registry& registry = Process::get().memory();
  std::lock_guard lock(mutex_);
  for (const auto& [address, buffer_id] : buffer_ids_) {
    const auto known = registry.find(address);
    if (!known || known->buffer_id != buffer_id) continue;  // it went with its context
    if (is_managed(*known)) unmirror(reinterpret_cast<const void*>(address));
    (void)registry.remove(address);
  }
  buffer_ids_.clear();
}

// ---- libraries ---------------------------------------------------------------------------------

CUresult Library::id_on(Session& session, wire::ObjectId context, wire::ObjectId* id) {
  std::lock_guard lock(mutex_);
  if (auto found = loaded_.find(&session); found != loaded_.end()) {
    *id = found->second;
    return CUDA_SUCCESS;
  }
  const wire::ObjectId minted = session.ids().mint(wire::Kind::kLibrary);
  if (minted == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result =
      load_image(session, context, wire::Custom::kLibraryLoad, minted, image_, options_);
  if (result != CUDA_SUCCESS) {
    session.ids().release(wire::Kind::kLibrary, minted);
    return result;
  }
  loaded_.emplace(&session, minted);
  *id = minted;
  return CUDA_SUCCESS;
}

CUresult Library::kernel(Object* library, const Target& target, const char* name, Object** kernel) {
  {
    std::lock_guard lock(mutex_);
    if (auto found = kernels_.find(name); found != kernels_.end()) {
      *kernel = found->second;
      return CUDA_SUCCESS;
    }
  }
  auto created = std::make_unique<Kernel>(library, name);
  FunctionInfo* info;
  if (CUresult result = created->info_on(target, &info); result != CUDA_SUCCESS) return result;
  std::lock_guard lock(mutex_);
  Object*& known = kernels_[name];
  if (!known) {
    known = create_object(wire::Kind::kKernel, {.extra = created.get()});
    if (!known) return CUDA_ERROR_OUT_OF_MEMORY;
    (void)created.release();
  }
  *kernel = known;
  return CUDA_SUCCESS;
}

namespace {

// A library's modules, in all contexts.
std::vector<Object*> modules_of(const Object* library) {
  struct Search {
    const Object* library;
    std::vector<Object*> found;
  } search{library, {}};
  for_each_object(
      wire::Kind::kModule,
      [](Object* module, void* argument) {
        auto& wanted = *static_cast<Search*>(argument);
        const auto* state = static_cast<const ModuleState*>(module->extra);
        if (state && state->library.load(std::memory_order_acquire) == wanted.library) {
          wanted.found.push_back(module);
        }
      },
      &search);
  return std::move(search.found);
}

}  // namespace

void Library::unload(Object* library) {
  variables_.forget();
  // First: once the library is unloaded, the worker gives the ids of its functions to others.
  {
    std::unique_lock gone(kernels_mutex());
    for (const auto& [name, kernel] : kernels_) {
      auto* ended = static_cast<Kernel*>(kernel->extra);
      retire_object(kernel);
      delete ended;
    }
  }
  for (Object* module : modules_of(library)) {
    delete static_cast<ModuleState*>(module->extra);
    retire(module, wire::Kind::kModule);
  }
  for (const auto& [session, id] : loaded_) {
    wire::Encoder body;
    body.value(id);
    (void)session->post(0, static_cast<uint16_t>(api::Opcode::cuLibraryUnload), body.body());
    session->ids().release(wire::Kind::kLibrary, id);
  }
  retire_object(library);
}

// ---- kernels -----------------------------------------------------------------------------------

Kernel::~Kernel() {
  for (const auto& [context, function] : functions_) {
    delete static_cast<FunctionInfo*>(function->extra);
    retire(function, wire::Kind::kFunction);
  }
}

CUresult Kernel::info_on(const Target& target, FunctionInfo** info) {
  if (FunctionInfo* first = first_.load(std::memory_order_acquire);
      first && first_device_ == target.device) {
    *info = first;
    return CUDA_SUCCESS;
  }
  std::lock_guard lock(mutex_);
  std::unique_ptr<FunctionInfo>& known = infos_[target.device];
  if (!known) {
    wire::ObjectId library_id;
    CUresult result =
        static_cast<Library*>(library_->extra)->id_on(*target.session, target.context, &library_id);
    if (result == CUDA_SUCCESS) {
      result =
          ask_function(*target.session, target.context, library_id, true, name_.c_str(), &known);
    }
    if (result != CUDA_SUCCESS) {
      infos_.erase(target.device);
      return result;
    }
  }
  if (!first_.load(std::memory_order_relaxed)) {
    first_device_ = target.device;
    first_.store(known.get(), std::memory_order_release);  // pairs with the acquire above
  }
  *info = known.get();
  return CUDA_SUCCESS;
}

void Kernel::note_attribute(const Target& target, int which, int value) {
  std::lock_guard lock(mutex_);
  if (const auto found = infos_.find(target.device); found != infos_.end()) {
    client::note_attribute(*found->second, which, value);
  }
  for (const auto& [key, function] : functions_) {
    if (key >> 32 != target.device) continue;
    client::note_attribute(*static_cast<FunctionInfo*>(function->extra), which, value);
  }
}

CUresult Kernel::function_in(Object* kernel, const Target& target, Object** function) {
  const uint64_t key = static_cast<uint64_t>(target.device) << 32 | target.context;
  {
    std::lock_guard lock(mutex_);
    if (auto found = functions_.find(key); found != functions_.end()) {
      *function = found->second;
      return CUDA_SUCCESS;
    }
  }
  FunctionInfo* info;
  if (CUresult result = info_on(target, &info); result != CUDA_SUCCESS) return result;
  const InContext scope(target);
  CUfunction created = nullptr;
  if (CUresult result = forward_cuKernelGetFunction(&created, reinterpret_cast<CUkernel>(kernel));
      result != CUDA_SUCCESS) {
    return result;
  }
  Object* object = find_object(created, wire::Kind::kFunction);
  if (!object) return CUDA_ERROR_UNKNOWN;
  std::lock_guard lock(mutex_);
  if (!object->extra) {
    auto* copy = new FunctionInfo;  // shares nothing: the function's attributes are its own
    copy->session = target.session;
    copy->id = object->id;
    copy->kernel = kernel;
    copy->parameters = info->parameters;
    copy->parameter_bytes = info->parameter_bytes;
    for (size_t i = 0; i < copy->attributes.size(); ++i) {
      copy->attributes[i].store(info->attributes[i].load(std::memory_order_relaxed),
                                std::memory_order_relaxed);
    }
    object->extra = copy;
  }
  functions_[key] = object;
  *function = object;
  return CUDA_SUCCESS;
}

void Kernel::forget_context(const Session& session, wire::ObjectId context) {
  std::lock_guard lock(mutex_);
  std::erase_if(functions_, [&](const auto& known) {
    return known.second->session == &session && known.second->context == context;
  });
}

bool Kernel::is(const Session& session, wire::ObjectId id) {
  std::lock_guard lock(mutex_);
  return std::any_of(infos_.begin(), infos_.end(), [&](const auto& known) {
    return known.second->session == &session && known.second->id == id;
  });
}

CUresult library_module(Object* library, const Target& target, CUmodule* module) {
  const InContext scope(target);
  CUmodule named = nullptr;
  const CUresult result = forward_cuLibraryGetModule(&named, reinterpret_cast<CUlibrary>(library));
  if (result != CUDA_SUCCESS) return result;
  const Object* found = find_object(named, wire::Kind::kModule);
  if (!found) return CUDA_ERROR_UNKNOWN;
  static_cast<ModuleState*>(found->extra)->library.store(library, std::memory_order_release);
  *module = named;
  return CUDA_SUCCESS;
}

Kernel* kernel_of(const void* handle) {
  const Object* object = find_object(handle, wire::Kind::kKernel);
  return object ? static_cast<Kernel*>(object->extra) : nullptr;
}

CUresult function_of(Object* kernel, const Target& target, Object** function) {
  auto* found = static_cast<Kernel*>(kernel->extra);
  return found ? found->function_in(kernel, target, function) : CUDA_ERROR_INVALID_HANDLE;
}

Object* find_kernel(Session& session, wire::ObjectId id) {
  struct Search {
    Session& session;
    wire::ObjectId id;
    Object* found = nullptr;
  } search{session, id, nullptr};
  std::shared_lock alive(kernels_mutex());
  for_each_object(
      wire::Kind::kKernel,
      [](Object* object, void* argument) {
        auto& wanted = *static_cast<Search*>(argument);
        auto* kernel = static_cast<Kernel*>(object->extra);
        // Null: a name of the worker's for a kernel that has another object here.
        if (kernel && kernel->is(wanted.session, wanted.id)) wanted.found = object;
      },
      &search);
  return search.found;
}

void forget_kernels_in(const Session& session, wire::ObjectId context) {
  struct Gone {
    const Session& session;
    wire::ObjectId context;
  } gone{session, context};
  std::shared_lock alive(kernels_mutex());
  for_each_object(
      wire::Kind::kKernel,
      [](Object* object, void* argument) {
        const auto& of = *static_cast<const Gone*>(argument);
        auto* kernel = static_cast<Kernel*>(object->extra);
        if (kernel) kernel->forget_context(of.session, of.context);
      },
      &gone);
}

CUresult resolve_callable(CUfunction handle, const Target& target, Callable* callable) {
  if (const Object* function = find_object(handle, wire::Kind::kFunction)) {
    if (function->session != target.session) return CUDA_ERROR_INVALID_HANDLE;
    callable->info = static_cast<FunctionInfo*>(function->extra);
    return callable->info ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  if (Kernel* kernel = kernel_of(handle)) {
    callable->is_kernel = true;
    return kernel->info_on(target, &callable->info);
  }
  return CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace rcuda::client
