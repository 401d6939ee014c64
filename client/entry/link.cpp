// cuLink*: the worker's driver links. The client sends each input like a module image: once,
// identified by its hash. The linked image arrives as a blob. The link state owns it, as with a
// driver.
#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <cuda.h>

#include "client/code/images.h"
#include "client/code/jit_options.h"
#include "client/code/module_images.h"
#include "client/objects/arena.h"
#include "client/objects/code.h"
#include "client/process/process.h"
#include "client/route/find_route.h"
#include "client/session/session.h"
#include "common/base/log.h"
#include "common/cuda/known_values.h"
#include "common/cuda/return_if_error.h"
#include "common/image/image.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

// The options with a number as value, in the two arrays that a generated call takes.
struct NumberOptions {
  NumberOptions(unsigned count, const CUjit_option* options, void* const* given) {
    for (const wire::JitOption& option : numbers_of(std::span(options, count), given)) {
      keys.push_back(static_cast<CUjit_option>(option.key));
      values.push_back(option.value);
    }
  }
  unsigned count() const { return static_cast<unsigned>(keys.size()); }

  std::vector<CUjit_option> keys;
  std::vector<unsigned long long> values;
};

bool readable(unsigned count, const CUjit_option* options, void* const* values) {
  if (count == 0) return true;
  return options && values &&
         std::all_of(options, options + count, [](auto key) { return rcuda::cuda::is_known(key); });
}

CUresult find_state(CUlinkState handle, LinkState** state) {
  return resolve_object(handle, state, CUDA_ERROR_INVALID_HANDLE);
}

// Writes the worker's logs to the application's log buffers. Called after each use of the worker's
// linker, even if the linker failed, because the logs then have the reason.
void fetch_logs(CUlinkState handle, LinkState& state) {
  Blob logs;
  if (state.logs.any() && forward_rcuda_link_logs(handle, &logs) == CUDA_SUCCESS) {
    fill_logs(state.logs, logs);
  }
}

CUresult add_input(CUlinkState handle, LinkState& state, CUjitInputType type,
                   std::span<const std::byte> input, const char* name, unsigned count,
                   CUjit_option* options, void** values) {
  if (!input.data() || input.empty() || !readable(count, options, values)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const ImageHash hash = hash_image(input);
  RCUDA_RETURN_IF_CUDA_ERROR(send_image(*state.session, state.context, hash, input));
  const NumberOptions numbers(count, options, values);
  CUresult result =
      forward_rcuda_link_add(handle, type, hash.data(), name ? name : "", numbers.count(),
                             numbers.keys.data(), numbers.values.data());
  fetch_logs(handle, state);
  return result;
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuLinkCreate_v2(unsigned count, CUjit_option* options, void** values, CUlinkState* state) {
  RCUDA_RETURN_IF_CUDA_ERROR(check_current());
  if (!state || !readable(count, options, values)) return CUDA_ERROR_INVALID_VALUE;
  const LogBuffers logs = log_buffers(std::span(options, count), values);
  const NumberOptions numbers(count, options, values);
  RCUDA_RETURN_IF_CUDA_ERROR(
      forward_rcuda_link_create(numbers.count(), numbers.keys.data(), numbers.values.data(),
                                static_cast<unsigned>(logs.info.capacity),
                                static_cast<unsigned>(logs.error.capacity), state));
  auto* created = find<LinkState>(*state);
  created->logs = logs;
  fetch_logs(*state, *created);
  return CUDA_SUCCESS;
}

CUresult cuLinkAddData_v2(CUlinkState handle, CUjitInputType type, void* data, size_t bytes,
                          const char* name, unsigned count, CUjit_option* options, void** values) {
  LinkState* state;
  RCUDA_RETURN_IF_CUDA_ERROR(find_state(handle, &state));
  return add_input(handle, *state, type, {static_cast<const std::byte*>(data), bytes}, name, count,
                   options, values);
}

CUresult cuLinkAddFile_v2(CUlinkState handle, CUjitInputType type, const char* path, unsigned count,
                          CUjit_option* options, void** values) {
  LinkState* state;
  RCUDA_RETURN_IF_CUDA_ERROR(find_state(handle, &state));
  std::vector<char> contents;
  RCUDA_RETURN_IF_CUDA_ERROR(read_file(path, &contents));
  // For empty data, cuLinkAddData returns CUDA_ERROR_INVALID_VALUE instead.
  if (contents.empty()) return CUDA_ERROR_INVALID_IMAGE;
  return add_input(handle, *state, type, std::as_bytes(std::span(contents)), path, count, options,
                   values);
}

CUresult cuLinkComplete(CUlinkState handle, void** image, size_t* bytes) {
  LinkState* state;
  RCUDA_RETURN_IF_CUDA_ERROR(find_state(handle, &state));
  if (!image) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = forward_rcuda_link_complete(handle, &state->image);
  fetch_logs(handle, *state);
  if (result != CUDA_SUCCESS) return result;
  // The application may load the image by its address alone. So the sizes in the headers of the
  // image must not exceed the image.
  const auto inspected = rcuda::image::inspect(state->image);
  if (!inspected.ok()) {
    RCUDA_ERROR("cuLinkComplete fails, because %s returned a malformed image: %s",
                state->session->name().c_str(), inspected.status().message().c_str());
    return CUDA_ERROR_UNKNOWN;
  }
  const size_t size = state->image.size();
  state->image.push_back(std::byte{0});  // terminates an image that is text
  *image = state->image.data();
  if (bytes) *bytes = size;
  return CUDA_SUCCESS;
}

}  // extern "C"
