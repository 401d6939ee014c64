// Handlers of images, modules and libraries.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>
#include <type_traits>

#include "api/server_commands.h"
#include "api/server_handlers.h"
#include "common/base/log.h"
#include "common/image/fatbin.h"
#include "common/image/image.h"
#include "server/executor/answers/answers.h"
#include "server/executor/answers/device_output.h"
#include "server/executor/core/custom.h"
#include "server/executor/core/session_resources.h"
#include "server/executor/images/image_store.h"
#include "server/executor/images/jit_options.h"
#include "server/executor/objects/objects.h"
#include "server/executor/peers/device_waits.h"

namespace rcuda::server {
namespace {

constexpr uint32_t kMaxImages = 1024;
constexpr uint32_t kMaxOptions = 64;
constexpr uint64_t kInlineChunk = ~0ull;

Sha256 hash_of(const uint8_t (&bytes)[32]) {
  Sha256 hash;
  std::memcpy(hash.data(), bytes, sizeof bytes);
  return hash;
}

bool contains(image::Bytes bytes, std::string_view word) {
  return ::memmem(bytes.data(), bytes.size(), word.data(), word.size()) != nullptr;
}

// Whether kernels of an image may print: code that prints refers to certain functions by name. Only
// uncompressed entries can be searched. ELF entries are usually uncompressed, and they name the
// same functions as their PTX counterparts. If all entries are compressed, the answer is yes, which
// costs a DeviceOutput::flush() per synchronisation.
bool may_print(const ImagePointer& loaded) {
  const auto names_printer = [](image::Bytes bytes) {
    return contains(bytes, "vprintf") || contains(bytes, "__assertfail");
  };
  const image::Bytes bytes = loaded->bytes();
  Result<image::Image> parsed = image::inspect(bytes);
  if (!parsed.ok() || parsed->format != image::Format::kFatbin) return names_printer(bytes);
  bool plain = false;
  for (image::Bytes part : parsed->parts) {
    Result<std::vector<image::Entry>> entries = image::entries(part);
    if (!entries.ok()) return true;
    for (const image::Entry& entry : *entries) {
      if (entry.compression != image::Compression::kNone) continue;
      plain = true;
      if (names_printer(entry.payload)) return true;
    }
  }
  return !plain;
}

// Returns the address of the only image. For several images, which form one program, makes a
// wrapper in `joined` and returns the wrapper's address.
const void* join(const std::vector<ImagePointer>& images, ImageStore::Loaded* joined) {
  const void* code = images.front()->bytes().data();
  if (images.size() == 1) return code;
  for (size_t i = 1; i < images.size(); ++i) {
    joined->prelinked.push_back(images[i]->bytes().data());
  }
  joined->prelinked.push_back(nullptr);
  const image::FatbinWrapper wrapper{image::kWrapperMagic, 2, code, joined->prelinked.data()};
  joined->wrapper.resize(sizeof wrapper);
  std::memcpy(joined->wrapper.data(), &wrapper, sizeof wrapper);
  return joined->wrapper.data();
}

HandlerResult load(ModuleServices& services, const Command& command,
                   const wire::ModuleLoadBody& body, bool is_library,
                   std::vector<std::byte>* reply) {
  BodyReader in(command.tail);
  if (body.image_count == 0 || body.image_count > kMaxImages || body.option_count > kMaxOptions ||
      body.library_option_count > kMaxOptions) {
    return kMalformed;
  }
  auto loaded = std::make_shared<ImageStore::Loaded>();
  std::vector<ImagePointer> images;
  std::vector<Sha256> hashes;
  for (uint32_t i = 0; i < body.image_count; ++i) {
    uint8_t hash[32];
    if (!in.read(&hash)) return kMalformed;
    hashes.push_back(hash_of(hash));
    ImagePointer image = services.images.find(hashes.back());
    // A client may send the load together with its query for the image. If the worker lacks the
    // image, the client sends it and repeats the load.
    if (!image) return CUDA_ERROR_NOT_READY;
    images.push_back(std::move(image));
  }
  for (const Sha256& hash : hashes) services.images.note_use(hash);
  // The reply has the sizes of both logs (JitLogs), then their texts.
  const size_t room = command.target.capacity() - sizeof(wire::JitLogs);
  const size_t info_bytes = std::min<size_t>(body.info_log_bytes, room / 2);
  const size_t error_bytes = std::min<size_t>(body.error_log_bytes, room / 2);
  JitOptions options(info_bytes, error_bytes);
  for (uint32_t i = 0; i < body.option_count; ++i) {
    wire::JitOption option;
    if (!in.read(&option)) return kMalformed;
    options.add(static_cast<CUjit_option>(option.key), option.value);
  }
  CUlibraryOption library_options[kMaxOptions];
  void* library_values[kMaxOptions];
  unsigned library_count = 0;
  for (uint32_t i = 0; i < body.library_option_count; ++i) {
    wire::JitOption option;
    if (!in.read(&option)) return kMalformed;
    if (option.key != CU_LIBRARY_BINARY_IS_PRESERVED) continue;
    library_options[library_count] = CU_LIBRARY_BINARY_IS_PRESERVED;
    library_values[library_count++] = reinterpret_cast<void*>(option.value);
  }

  for (const ImagePointer& image : images) {
    // The driver trusts the sizes in an image's headers, so they are checked first.
    if (!image::inspect(image->bytes()).ok()) return CUDA_ERROR_INVALID_IMAGE;
  }
  const void* code = join(images, loaded.get());
  loaded->images = images;
  const api::DriverTable& driver = services.driver;
  void* handle = nullptr;
  CUresult result = CUDA_SUCCESS;
  if (is_library) {
    result = driver.cuLibraryLoadData(reinterpret_cast<CUlibrary*>(&handle), code, options.names(),
                                      options.values(), options.count(), library_options,
                                      library_values, library_count);
  } else {
    result = driver.cuModuleLoadDataEx(reinterpret_cast<CUmodule*>(&handle), code, options.count(),
                                       options.names(), options.values());
  }
  options.write_logs(reply);
  if (result != CUDA_SUCCESS) return result;
  const wire::Kind kind = is_library ? wire::Kind::kLibrary : wire::Kind::kModule;
  if (!services.objects.bind(kind, body.object, handle)) return kMalformed;
  services.images.keep(kind, body.object, std::move(loaded));
  if (std::any_of(images.begin(), images.end(), may_print)) services.output.enable();
  RCUDA_DEBUG("%s %u loaded from %zu image(s)", is_library ? "library" : "module", body.object,
              images.size());
  return {};
}

void drop_unused_images(ModuleServices& services) {
  services.images.drop_unused([&](wire::Kind kind, wire::ObjectId id) {
    return services.objects.of(kind).find(id) != nullptr;
  });
}

// Unloads code now if the driver would not wait, otherwise when the device is idle: a driver blocks
// its caller until then, and the executor thread must not block. The object's id is free at once,
// because the client may mint it again.
template <typename Code>
CUresult unload_when_idle(ModuleServices& services, CUresult (*unload)(Code), Code code,
                          std::shared_ptr<ImageStore::Loaded> loaded) {
  ContextState* const context = services.objects.current_context();
  if (!context || services.device_waits.may_call(*context)) return unload(code);
  const auto run = [&objects = services.objects, &answers = services.answers, id = context->id,
                    generation = context->generation, unload, code, loaded = std::move(loaded)] {
    const ContextState* const state = objects.find_context(id);
    const bool ended = !state || state->generation != generation;
    // A module ends with its context. A library belongs to no context.
    if (ended && std::is_same_v<Code, CUmodule>) return;
    if (objects.make_current(id) != CUDA_SUCCESS) objects.forget_current();
    if (CUresult result = unload(code); result != CUDA_SUCCESS) answers.latch(result);
  };
  services.device_waits.postpone({context->id, true, nullptr, run});
  return CUDA_SUCCESS;
}

// Returns the object of a driver's handle. A handle without an id gets one in the current context.
Object* name_here(SessionObjects& objects, wire::Kind kind, void* handle) {
  const ContextState* context = objects.current_context();
  return objects.of(kind).find(objects.of(kind).name(handle, context ? context->id : 0));
}

// Mints an id for a texture or surface reference, and records that it ends with its module.
void name_part(SessionObjects& objects, wire::Kind kind, void* handle, CUmodule module) {
  if (Object* const named = name_here(objects, kind, handle)) {
    named->owner_kind = wire::Kind::kModule;
    named->owner = objects.of(wire::Kind::kModule).id_of(module);
  }
}

void unbind_parts(SessionObjects& objects, wire::ObjectId module) {
  for (const wire::Kind kind :
       {wire::Kind::kFunction, wire::Kind::kTextureReference, wire::Kind::kSurfaceReference}) {
    objects.of(kind).unbind_owned(wire::Kind::kModule, module);
  }
}

}  // namespace

CUresult serve_cuModuleUnload(ModuleServices& services, CUmodule hmod) {
  const wire::ObjectId id = services.objects.of(wire::Kind::kModule).id_of(hmod);
  unbind_parts(services.objects, id);
  const CUresult result = unload_when_idle(services, services.driver.cuModuleUnload, hmod,
                                           services.images.release(wire::Kind::kModule, id));
  drop_unused_images(services);
  return result;
}

CUresult serve_cuLibraryUnload(ModuleServices& services, CUlibrary library) {
  SessionObjects& objects = services.objects;
  const wire::ObjectId id = objects.of(wire::Kind::kLibrary).id_of(library);
  // The library's modules and their functions end as well.
  objects.of(wire::Kind::kModule).for_each([&](wire::ObjectId module, const Object& object) {
    if (object.owner == id && object.owner_kind == wire::Kind::kLibrary && id != 0) {
      unbind_parts(objects, module);
    }
  });
  for (const wire::Kind kind : {wire::Kind::kKernel, wire::Kind::kFunction, wire::Kind::kModule}) {
    objects.of(kind).unbind_owned(wire::Kind::kLibrary, id);
  }
  const CUresult result = unload_when_idle(services, services.driver.cuLibraryUnload, library,
                                           services.images.release(wire::Kind::kLibrary, id));
  drop_unused_images(services);
  return result;
}

CUresult serve_cuLibraryGetModule(ModuleServices& services, CUmodule* module, CUlibrary library) {
  const CUresult result = services.driver.cuLibraryGetModule(module, library);
  if (result != CUDA_SUCCESS) return result;
  if (Object* const named = name_here(services.objects, wire::Kind::kModule, *module)) {
    named->owner_kind = wire::Kind::kLibrary;
    named->owner = services.objects.of(wire::Kind::kLibrary).id_of(library);
  }
  return CUDA_SUCCESS;
}

CUresult serve_cuKernelGetFunction(ModuleServices& services, CUfunction* function,
                                   CUkernel kernel) {
  const CUresult result = services.driver.cuKernelGetFunction(function, kernel);
  if (result != CUDA_SUCCESS) return result;
  Object* const named = name_here(services.objects, wire::Kind::kFunction, *function);
  ObjectTable& kernels = services.objects.of(wire::Kind::kKernel);
  const Object* const of = kernels.find(kernels.id_of(kernel));
  if (named && of) {
    named->owner_kind = of->owner_kind;
    named->owner = of->owner;
  }
  return CUDA_SUCCESS;
}

CUresult serve_cuModuleGetTexRef(ModuleServices& services, CUtexref* reference, CUmodule module,
                                 const char* name) {
  const CUresult result = services.driver.cuModuleGetTexRef(reference, module, name);
  if (result == CUDA_SUCCESS) {
    name_part(services.objects, wire::Kind::kTextureReference, *reference, module);
  }
  return result;
}

CUresult serve_cuModuleGetSurfRef(ModuleServices& services, CUsurfref* reference, CUmodule module,
                                  const char* name) {
  const CUresult result = services.driver.cuModuleGetSurfRef(reference, module, name);
  if (result == CUDA_SUCCESS) {
    name_part(services.objects, wire::Kind::kSurfaceReference, *reference, module);
  }
  return result;
}

HandlerResult image_query(ModuleServices& services, const Command&,
                          const wire::ImageQueryBody& body, std::vector<std::byte>* reply) {
  bool present = false;
  const CUresult result = services.images.query(hash_of(body.sha256), body.bytes, &present);
  append(reply, static_cast<uint32_t>(present));
  append(reply, uint32_t{0});
  return result;
}

HandlerResult image_chunk(ModuleServices& services, const Command& command,
                          const wire::ImageChunkBody& body) {
  BodyReader in(command.tail);
  std::span<const std::byte> bytes;
  if (body.staging_offset == kInlineChunk) {
    if (!in.bytes(body.bytes, &bytes)) return kMalformed;
    return services.images.add_chunk(hash_of(body.sha256), body.offset, bytes);
  }
  const SessionResources& resources = services.resources;
  if (body.bytes > resources.staging_bytes ||
      body.staging_offset > resources.staging_bytes - body.bytes) {
    return kMalformed;
  }
  bytes = {resources.staging + body.staging_offset, body.bytes};
  const CUresult result = services.images.add_chunk(hash_of(body.sha256), body.offset, bytes);
  services.answers.signal({body.word, body.sequence}, result);
  return {};
}

HandlerResult module_load(ModuleServices& services, const Command& command,
                          const wire::ModuleLoadBody& body, std::vector<std::byte>* reply) {
  const HandlerResult result = load(services, command, body, false, reply);
  drop_unused_images(services);
  return result;
}

HandlerResult library_load(ModuleServices& services, const Command& command,
                           const wire::ModuleLoadBody& body, std::vector<std::byte>* reply) {
  const HandlerResult result = load(services, command, body, true, reply);
  drop_unused_images(services);
  return result;
}

}  // namespace rcuda::server
