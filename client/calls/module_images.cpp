#include "client/calls/module_images.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "client/calls/images.h"
#include "client/calls/marshal.h"
#include "client/channel/session.h"
#include "common/base/log.h"
#include "common/image/image.h"
#include "common/wire/codec.h"

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

bool is_buffer(CUlibraryOption option) {
  return option == CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE;
}

// An option as it travels, behind the images' hashes.
struct WireOption {
  uint32_t key, reserved;
  uint64_t value;
};

template <typename Key>
std::vector<WireOption> numbers_of(const std::vector<Key>& keys, const std::vector<void*>& values) {
  std::vector<WireOption> numbers;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (is_buffer(keys[i])) continue;
    numbers.push_back({static_cast<uint32_t>(keys[i]), 0, reinterpret_cast<uintptr_t>(values[i])});
  }
  return numbers;
}

template <typename Item>
void append(const std::vector<Item>& items, std::vector<std::byte>* bytes) {
  const auto more = std::as_bytes(std::span(items));
  bytes->insert(bytes->end(), more.begin(), more.end());
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
  const LogBuffers buffers = log_buffers(options);
  constexpr size_t kLogLimit = 24u << 10;  // of each: both fit a large reply slot
  const std::vector<WireOption> values = numbers_of(options.keys, options.values);
  const std::vector<WireOption> library_values =
      numbers_of(options.library_keys, options.library_values);
  wire::ModuleLoadBody body{};
  body.object = id;
  body.image_count = static_cast<uint32_t>(image.hashes.size());
  body.option_count = static_cast<uint32_t>(values.size());
  body.library_option_count = static_cast<uint32_t>(library_values.size());
  body.info_log_bytes = static_cast<uint32_t>(std::min(buffers.info.capacity, kLogLimit));
  body.error_log_bytes = static_cast<uint32_t>(std::min(buffers.error.capacity, kLogLimit));
  std::vector<std::byte> tail;
  append(image.hashes, &tail);
  append(values, &tail);
  append(library_values, &tail);
  if (tail.size() > wire::kMaxBodyBytes - sizeof body) {
    RCUDA_ERROR(
        "a program of %zu relocatable parts, loaded with %zu options, cannot be loaded: rcuda "
        "takes "
        "up to %zu parts; build fewer files with -rdc=true",
        image.hashes.size(), values.size() + library_values.size(),
        (wire::kMaxBodyBytes - sizeof body) / sizeof(ImageHash));
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  for (size_t i = 0; i < image.parts.size(); ++i) {
    if (CUresult result = send_image(session, context, image.hashes[i], image.parts[i]);
        result != CUDA_SUCCESS) {
      return result;
    }
  }
  Reply reply;
  const CUresult result = session.call(session.in_context(context), static_cast<uint16_t>(opcode),
                                       std::as_bytes(std::span(&body, 1)), tail,
                                       32 + body.info_log_bytes + body.error_log_bytes, &reply);
  fill_logs(buffers, reply.body());
  return result;
}

}  // namespace rcuda::client
