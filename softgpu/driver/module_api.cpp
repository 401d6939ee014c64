// cuModule*, cuLink*, and the cuFunc* calls for a function's module, name and loading.
#include <algorithm>
#include <memory>
#include <span>
#include <string>

#include <cuda.h>

#include "softgpu/driver/config.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/jit_options.h"
#include "softgpu/driver/link.h"
#include "softgpu/driver/module.h"

using namespace softgpu::driver;

namespace {

CUresult load(Context& context, CUmodule* handle, const rcuda::Result<rcuda::image::Image>& image,
              JitLog* log) {
  std::vector<std::string> units;
  if (CUresult result = read_image(image, &units, log)) return result;
  // Driver 580 waits for the context's work before it loads code into the context (H200).
  if (CUresult result = context.synchronize()) return result;
  std::shared_ptr<Module> module;
  if (CUresult result = load_module(context, units, log, &module)) return result;
  *handle = module->handle();
  return CUDA_SUCCESS;
}

CUresult load(CUmodule* handle, const void* pointer, JitLog* log) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!handle || !pointer) return CUDA_ERROR_INVALID_VALUE;
  return load(*context, handle, rcuda::image::measure(pointer), log);
}

struct LinkState {
  JitLog log;
  std::vector<std::string> units;
  std::vector<std::byte> image;
};

bool is_object_or_archive(std::string_view data) {
  return data.starts_with(
             "\x7f"
             "ELF") ||
         data.starts_with("!<arch>\n");
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
  return load(module, image, nullptr);
}

CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return load(module, image, nullptr);
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count,
                                    CUjit_option* options, void** values) {
  if (CUresult result = check_initialized()) return result;
  JitLog log;
  if (CUresult result = JitLog::read(count, options, values, &log)) return result;
  const CUresult result = load(module, image, &log);
  log.finish();
  return result;
}

CUresult CUDAAPI cuModuleLoad(CUmodule* module, const char* path) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!module || !path) return CUDA_ERROR_INVALID_VALUE;
  std::string contents;
  if (CUresult result = read_file(path, &contents)) return result;
  return load(*context, module, rcuda::image::inspect(std::as_bytes(std::span(contents))), nullptr);
}

CUresult CUDAAPI cuModuleUnload(CUmodule handle) {
  Context* context = nullptr;
  if (CUresult result = enter_anywhere(&context)) return result;
  std::shared_ptr<Module> module = module_from_handle(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  if (module->library()) return CUDA_ERROR_NOT_PERMITTED;  // it is unloaded with its library
  if (CUresult result = module->context().synchronize()) return result;
  module->retire();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (CUresult result = check_initialized()) return result;
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  *mode = configuration().variables.module_loading;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  Context* context = nullptr;
  if (CUresult result = enter_anywhere(&context)) return result;
  if (!function || !name || !*name) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Module> module = module_from_handle(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Function> found = module->function(name);
  if (!found) return CUDA_ERROR_NOT_FOUND;
  *function = found->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetFunctionCount(unsigned int* count, CUmodule handle) {
  Context* context = nullptr;
  if (CUresult result = enter_anywhere(&context)) return result;
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Module> module = module_from_handle(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  *count = static_cast<unsigned>(module->program().kernels().size());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleEnumerateFunctions(CUfunction* functions, unsigned int count,
                                            CUmodule handle) {
  Context* context = nullptr;
  if (CUresult result = enter_anywhere(&context)) return result;
  if (!functions) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Module> module = module_from_handle(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  const auto& kernels = module->program().kernels();
  for (unsigned i = 0; i < count && i < kernels.size(); ++i) {
    std::shared_ptr<Function> function = module->function(kernels[i]->name);
    functions[i] = function ? function->handle() : nullptr;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule handle,
                                      const char* name) {
  Context* context = nullptr;
  if (CUresult result = enter_anywhere(&context)) return result;
  if (!name || !*name || (!address && !bytes)) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Module> module = module_from_handle(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  const softgpu::exec::Global* global = module->program().find_global(name);
  if (!global) return CUDA_ERROR_NOT_FOUND;
  if (address) *address = global->address;
  if (bytes) *bytes = global->size_bytes;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetModule(CUmodule* module, CUfunction handle) {
  Context* context = nullptr;
  if (CUresult result = enter_anywhere(&context)) return result;
  if (!module) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (CUresult result = function_from_handle(handle, &function)) return result;
  *module = function->module()->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetName(const char** name, CUfunction handle) {
  Context* context = nullptr;
  if (CUresult result = enter_anywhere(&context)) return result;
  if (!name || !handle) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (CUresult result = function_from_handle(handle, &function)) return result;
  *name = function->kernel().name.c_str();
  return CUDA_SUCCESS;
}

// A function that has a handle is already loaded, because a program is decoded as a whole.
CUresult CUDAAPI cuFuncLoad(CUfunction handle) {
  Context* context = nullptr;
  if (CUresult result = enter_anywhere(&context)) return result;
  return handle_table<Function>().find(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction handle) {
  Context* context = nullptr;
  if (CUresult result = enter_anywhere(&context)) return result;
  if (!state) return CUDA_ERROR_INVALID_VALUE;
  if (!handle_table<Function>().find(handle)) return CUDA_ERROR_INVALID_HANDLE;  // also a CUkernel
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLinkCreate_v2(unsigned int count, CUjit_option* options, void** values,
                                 CUlinkState* handle) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  auto state = std::make_shared<LinkState>();
  if (CUresult result = JitLog::read(count, options, values, &state->log)) return result;
  *handle = reinterpret_cast<CUlinkState>(state.get());
  handle_table<LinkState>().insert(std::move(state));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLinkAddData_v2(CUlinkState handle, CUjitInputType type, void* data, size_t bytes,
                                  const char*, unsigned int count, CUjit_option* options,
                                  void** values) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  std::shared_ptr<LinkState> state = handle_table<LinkState>().find(handle);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  if (!data || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  JitLog unused;
  if (CUresult result = JitLog::read(count, options, values, &unused)) return result;
  switch (type) {
    case CU_JIT_INPUT_PTX: {
      std::string text(static_cast<const char*>(data), bytes);
      if (const size_t end = text.find('\0'); end != std::string::npos) text.resize(end);
      const CUresult result = check_ptx(text, &state->log);
      state->log.finish();
      if (result != CUDA_SUCCESS) return result;
      state->units.push_back(std::move(text));
      return CUDA_SUCCESS;
    }
    case CU_JIT_INPUT_FATBINARY:
    case CU_JIT_INPUT_CUBIN: {
      const rcuda::image::Bytes given(static_cast<const std::byte*>(data), bytes);
      std::vector<std::string> units;
      if (CUresult result = read_image(rcuda::image::inspect(given), &units, &state->log)) {
        return result;
      }
      std::move(units.begin(), units.end(), std::back_inserter(state->units));
      return CUDA_SUCCESS;
    }
    case CU_JIT_INPUT_OBJECT:
    case CU_JIT_INPUT_LIBRARY:
      // Objects and libraries contain SASS. For other data, driver 580 returns CUDA_ERROR_UNKNOWN.
      return is_object_or_archive({static_cast<const char*>(data), bytes})
                 ? CUDA_ERROR_NOT_SUPPORTED
                 : CUDA_ERROR_UNKNOWN;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult CUDAAPI cuLinkAddFile_v2(CUlinkState handle, CUjitInputType type, const char* path,
                                  unsigned int count, CUjit_option* options, void** values) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  std::string contents;
  if (CUresult result = read_file(path, &contents)) return result;
  if (contents.empty()) return CUDA_ERROR_INVALID_IMAGE;  // unlike empty data in cuLinkAddData
  return cuLinkAddData_v2(handle, type, contents.data(), contents.size(), path, count, options,
                          values);
}

CUresult CUDAAPI cuLinkCreate(unsigned int count, CUjit_option* options, void** values,
                              CUlinkState* handle) {
  return cuLinkCreate_v2(count, options, values, handle);
}

CUresult CUDAAPI cuLinkAddData(CUlinkState handle, CUjitInputType type, void* data, size_t bytes,
                               const char* name, unsigned int count, CUjit_option* options,
                               void** values) {
  return cuLinkAddData_v2(handle, type, data, bytes, name, count, options, values);
}

CUresult CUDAAPI cuLinkAddFile(CUlinkState handle, CUjitInputType type, const char* path,
                               unsigned int count, CUjit_option* options, void** values) {
  return cuLinkAddFile_v2(handle, type, path, count, options, values);
}

CUresult CUDAAPI cuLinkComplete(CUlinkState handle, void** image, size_t* bytes) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  std::shared_ptr<LinkState> state = handle_table<LinkState>().find(handle);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  if (!image) return CUDA_ERROR_INVALID_VALUE;
  // Loads the units once to report errors of parsing and linking.
  std::shared_ptr<Module> trial;
  const CUresult result = load_module(*context, state->units, &state->log, &trial);
  state->log.finish();
  if (result != CUDA_SUCCESS) return result;
  trial->retire();
  state->image = link_image(state->units);
  *image = state->image.data();
  if (bytes) *bytes = state->image.size();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLinkDestroy(CUlinkState handle) {
  if (CUresult result = check_initialized()) return result;
  return handle_table<LinkState>().remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // extern "C"
