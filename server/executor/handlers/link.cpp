// Handlers of cuLink*. The inputs are images that the client has sent (image_store.h).
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "api/server_handlers.h"
#include "common/cuda/return_if_error.h"
#include "common/image/image.h"
#include "server/executor/core/dispatch.h"
#include "server/executor/core/services.h"
#include "server/executor/images/image_store.h"
#include "server/executor/images/link_states.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {
namespace {

constexpr unsigned kMaxOptions = 64;
constexpr unsigned kMaxLogBytes = 1u << 20;

CUresult read_options(unsigned count, const CUjit_option* options, const unsigned long long* values,
                      JitOptions* read) {
  if (count > kMaxOptions) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) read->add(options[i], values[i]);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult serve_rcuda_link_create(ModuleServices& services, unsigned count,
                                 const CUjit_option* options, const unsigned long long* values,
                                 unsigned info_bytes, unsigned error_bytes, CUlinkState* state) {
  auto read = std::make_unique<JitOptions>(std::min(info_bytes, kMaxLogBytes),
                                           std::min(error_bytes, kMaxLogBytes));
  RCUDA_RETURN_IF_CUDA_ERROR(read_options(count, options, values, read.get()));
  RCUDA_RETURN_IF_CUDA_ERROR(
      services.driver.cuLinkCreate_v2(read->count(), read->names(), read->values(), state));
  const ContextState* const context = services.objects.current_context();
  services.links.add(*state, context ? context->id : 0, std::move(read));
  return CUDA_SUCCESS;
}

CUresult serve_rcuda_link_add(ModuleServices& services, CUlinkState state, CUjitInputType type,
                              const unsigned char* sha256, const char* name, unsigned count,
                              const CUjit_option* options, const unsigned long long* values) {
  Sha256 hash;
  std::memcpy(hash.data(), sha256, hash.size());
  const ImagePointer input = services.images.find(hash);
  if (!input) return CUDA_ERROR_INVALID_VALUE;
  services.images.note_use(hash);
  JitOptions read(0, 0);
  RCUDA_RETURN_IF_CUDA_ERROR(read_options(count, options, values, &read));
  // The driver trusts the sizes in an image's headers, so they are checked first.
  const bool is_image = type == CU_JIT_INPUT_CUBIN || type == CU_JIT_INPUT_FATBINARY;
  if (is_image && !image::inspect(input->bytes()).ok()) return CUDA_ERROR_INVALID_IMAGE;
  // The driver reads the input during the call only. It may read PTX up to a null character after
  // the given size.
  std::vector<std::byte> text;
  auto* bytes = const_cast<std::byte*>(input->bytes().data());
  if (type == CU_JIT_INPUT_PTX) {
    text.assign(input->bytes().begin(), input->bytes().end());
    text.push_back(std::byte{0});
    bytes = text.data();
  }
  return services.driver.cuLinkAddData_v2(state, type, bytes, input->bytes().size(), name,
                                          read.count(), read.names(), read.values());
}

CUresult serve_rcuda_link_complete(ModuleServices& services, CUlinkState state, Blob* image) {
  void* linked = nullptr;
  size_t bytes = 0;
  const CUresult result = services.driver.cuLinkComplete(state, &linked, &bytes);
  if (result != CUDA_SUCCESS) return result;
  const auto* first = static_cast<const std::byte*>(linked);
  image->assign(first, first + bytes);
  return CUDA_SUCCESS;
}

CUresult serve_rcuda_link_logs(ModuleServices& services, CUlinkState state, Blob* logs) {
  const JitOptions* options = services.links.find(state);
  if (!options) return CUDA_ERROR_INVALID_HANDLE;
  options->write_logs(logs);
  return CUDA_SUCCESS;
}

CUresult serve_cuLinkDestroy(ModuleServices& services, CUlinkState state) {
  const CUresult result = services.driver.cuLinkDestroy(state);
  if (result == CUDA_SUCCESS) services.links.remove(state);
  return result;
}

}  // namespace rcuda::server
