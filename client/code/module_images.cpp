#include "client/code/module_images.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "client/code/functions.h"
#include "client/code/images.h"
#include "client/code/jit_options.h"
#include "client/route/find_route.h"
#include "client/session/session.h"
#include "common/base/append_bytes.h"
#include "common/base/log.h"
#include "common/image/image.h"
#include "common/image/kernel_names.h"
#include "common/wire/codec.h"

namespace rcuda::client {
namespace {

// The functions of an image are queried during its load only if there are at most this many. A
// program uses few functions of a large image, and the worker needs about 10 us for each answer.
// Over shared memory the limit is lower, because a later round trip takes no longer than such an
// answer.
size_t most_asked(const Session& session) {
  constexpr size_t kOverNetwork = 4;
  return session.traits().shares_pages ? 1 : kOverNetwork;
}

// Returns the names of the image's functions. Returns no names for fatbin containers, because their
// entries may be compressed.
std::vector<std::string> functions_of(const ImageParts& image) {
  if (image.parts.size() != 1) return {};
  const Result<image::Image> known = image::inspect(image.parts.front());
  if (!known) return {};
  Result<std::vector<std::string>> names = image::kernel_names(*known);
  return names.ok() ? std::move(*names) : std::vector<std::string>();
}

// Queries the functions in the round trip of the command that loads them.
class Questions {
 public:
  Questions(Session& session, wire::ObjectId context, std::vector<std::string> names)
      : session_(session), context_(context) {
    if (names.size() <= most_asked(session)) names_ = std::move(names);
  }
  void send(wire::ObjectId owner, bool are_kernels) {
    for (const std::string& name : names_) {
      Sent& sent = sent_.emplace_back();
      sent.name = name;
      if (sent.question.send(session_, context_, owner, are_kernels, name.c_str()) !=
          CUDA_SUCCESS) {
        sent_.pop_back();
      }
    }
  }
  // Reads the answers and adds the functions to *functions. If the worker lacked the image, the
  // queries fail, and the functions are queried when the application looks them up.
  void take(LoadedFunctions* functions) {
    for (Sent& sent : sent_) {
      LoadedFunction function{sent.name, nullptr};
      if (sent.question.answer(&function.info) == CUDA_SUCCESS) {
        functions->push_back(std::move(function));
      }
    }
  }

 private:
  Session& session_;
  const wire::ObjectId context_;
  std::vector<std::string> names_;
  struct Sent {
    std::string name;
    FunctionQuestion question;
  };
  std::deque<Sent> sent_;  // a deque, because a sent question must not move
};

}  // namespace

CUresult read_file(const char* path, std::vector<char>* contents) {
  if (!path || !*path) return CUDA_ERROR_INVALID_VALUE;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "rbe"), &std::fclose);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  contents->clear();
  char part[64 << 10];
  while (const size_t got = std::fread(part, 1, sizeof part, file.get())) {
    contents->insert(contents->end(), part, part + got);
  }
  // A folder can be opened but not read. A driver then returns CUDA_ERROR_OUT_OF_MEMORY.
  return std::ferror(file.get()) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult measure_image(const void* pointer, std::optional<size_t> bytes, ImageParts* image) {
  if (!pointer && !bytes) return CUDA_ERROR_INVALID_VALUE;
  Result<image::Image> measured =
      bytes ? image::inspect({static_cast<const std::byte*>(pointer), *bytes})
            : image::measure(pointer);
  if (!measured) {
    RCUDA_DEBUG("cannot load a module image (CUDA_ERROR_INVALID_IMAGE): %s",
                measured.status().message().c_str());
    return CUDA_ERROR_INVALID_IMAGE;
  }
  for (const std::span<const std::byte> part : measured->parts) {
    image->parts.push_back(part);
    image->hashes.push_back(hash_image(part));
  }
  return CUDA_SUCCESS;
}

CUresult load_image(Session& session, wire::ObjectId context, wire::Custom opcode,
                    wire::ObjectId id, const ImageParts& image, JitOptions& options,
                    LoadedFunctions* functions) {
  const LogBuffers buffers = log_buffers(options.keys, options.values.data());
  constexpr size_t kLogLimit = 24u << 10;  // of each log; both fit into a large reply slot
  const std::vector<wire::JitOption> values = numbers_of(options.keys, options.values.data());
  const std::vector<wire::JitOption> library_values =
      numbers_of(options.library_keys, options.library_values.data());
  wire::ModuleLoadBody body{};
  body.object = id;
  body.image_count = static_cast<uint32_t>(image.hashes.size());
  body.option_count = static_cast<uint32_t>(values.size());
  body.library_option_count = static_cast<uint32_t>(library_values.size());
  body.info_log_bytes = static_cast<uint32_t>(std::min(buffers.info.capacity, kLogLimit));
  body.error_log_bytes = static_cast<uint32_t>(std::min(buffers.error.capacity, kLogLimit));
  std::vector<std::byte> tail;
  append_bytes(&tail, image.hashes);
  append_bytes(&tail, values);
  append_bytes(&tail, library_values);
  if (tail.size() > wire::kMaxBodyBytes - sizeof body) {
    RCUDA_ERROR(
        "cannot load a program of %zu relocatable parts with %zu options: rcuda takes up to %zu "
        "parts, fewer with options; build fewer files with -rdc=true",
        image.hashes.size(), values.size() + library_values.size(),
        (wire::kMaxBodyBytes - sizeof body) / sizeof(ImageHash));
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  Questions questions(session, context,
                      functions ? functions_of(image) : std::vector<std::string>());
  const auto ask = [&] { questions.send(id, opcode == wire::Custom::kLibraryLoad); };
  std::optional<Reply> reply;
  const CUresult result = call_with_images(session, context, image,
                                           {{opcode, wire::body_bytes(body), tail},
                                            32 + body.info_log_bytes + body.error_log_bytes,
                                            ask},
                                           &reply);
  if (functions) questions.take(functions);
  if (reply) fill_logs(buffers, reply->body());
  return result;
}

}  // namespace rcuda::client
