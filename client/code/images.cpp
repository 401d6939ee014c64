#include "client/code/images.h"

// This file uses the low-level digest functions. EVP would link all of libcrypto's providers into
// every process that preloads this library.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <vector>

#include <openssl/sha.h>

#include "client/session/capture_answers.h"
#include "client/session/staging.h"
#include "client/session/task_pool.h"
#include "common/base/mutex.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

// Images of at most this total size are sent in commands, like copies of this size over sockets
// (client/copy/linear.cpp). This size is a sixteenth of the ring, and takes 0.2 ms at 10 Gb/s.
// Larger images go through staging slots; filling a slot is a round trip.
constexpr size_t kMostInCommands = 256u << 10;

CUresult send_chunk(Session& session, wire::ObjectId context, const ImageHash& hash,
                    std::span<const std::byte> image, size_t offset, size_t length) {
  wire::ImageChunkBody body{};
  std::memcpy(body.sha256, hash.data(), hash.size());
  body.offset = offset;
  body.bytes = static_cast<uint32_t>(length);
  if (length <= wire::kMaxInlineBytes) {
    body.staging_offset = ~uint64_t{0};
    return session.post(session.in_context(context), {body, image.subspan(offset, length)});
  }
  Staging::Slot slot = session.staging().acquire(nullptr);
  CUresult result = session.staging().fill(slot, image.data() + offset, length);
  if (result == CUDA_SUCCESS) {
    body.staging_offset = slot.offset;
    body.word = slot.word.index;
    body.sequence = slot.word.sequence;
    result = session.post(session.in_context(context), body);
  } else {
    --slot.word.sequence;  // no command has this sequence, so the worker never writes it
  }
  session.staging().release(slot);
  return result;
}

CUresult send_bytes(Session& session, wire::ObjectId context, const ImageHash& hash,
                    std::span<const std::byte> image, size_t chunk_bytes) {
  const size_t chunks = (image.size() + chunk_bytes - 1) / chunk_bytes;
  std::atomic<int> first_error{CUDA_SUCCESS};
  const auto send = [&](size_t index) {
    if (first_error.load() != CUDA_SUCCESS) return;
    const size_t offset = index * chunk_bytes;
    note_failure(&first_error, send_chunk(session, context, hash, image, offset,
                                          std::min(chunk_bytes, image.size() - offset)));
  };
  // Filling a slot is a round trip, so the slots are filled in parallel. The worker accepts the
  // chunks in any order.
  if (chunk_bytes > wire::kMaxInlineBytes) {
    run_parallel(chunks, send);
  } else {
    for (size_t i = 0; i < chunks; ++i) send(i);
  }
  return static_cast<CUresult>(first_error.load());
}

CUresult read_answer(Session& session, Session::PendingCall& question, bool* present) {
  Reply reply;
  RCUDA_RETURN_IF_CUDA_ERROR(session.finish(question, &reply));
  uint32_t answer = 0;
  if (reply.body().size() < sizeof answer) return CUDA_ERROR_UNKNOWN;
  std::memcpy(&answer, reply.body().data(), sizeof answer);
  *present = answer != 0;
  return CUDA_SUCCESS;
}

// Whether the image is sent in commands instead of through staging slots. True for small images,
// except over shared memory, where filling a slot takes no round trip.
bool goes_in_commands(const Session& session, const ImageParts& image) {
  size_t bytes = 0;
  for (const std::span<const std::byte> part : image.parts) bytes += part.size();
  return bytes <= kMostInCommands && !session.traits().shares_pages;
}

// Whether the image is sent together with the query, because the worker probably lacks a part.
bool goes_with_question(Session& session, const ImageParts& image)
    RCUDA_REQUIRES(session.image_mutex()) {
  const ImageBook& images = session.images();
  return images.expects_lack() && goes_in_commands(session, image) &&
         !std::ranges::all_of(image.hashes,
                              [&](const ImageHash& hash) { return images.knows(hash); });
}

// Asks the worker which parts in [first, last) it has, and adds the parts that it lacks to
// `missing`. Sends all queries, calls `also`, and then reads the answers. `with_bytes`: also sends
// the bytes of each part after its query, so no part is missing.
CUresult ask(Session& session, wire::ObjectId context, const ImageParts& image, size_t first,
             size_t last, bool with_bytes, std::vector<size_t>* missing,
             const std::function<void()>& also) RCUDA_REQUIRES(session.image_mutex()) {
  std::vector<Session::PendingCall> questions(last - first);
  CUresult failed = CUDA_SUCCESS;
  for (size_t i = first; i < last; ++i) {
    wire::ImageQueryBody query{};
    std::memcpy(query.sha256, image.hashes[i].data(), image.hashes[i].size());
    query.bytes = image.parts[i].size();
    session.begin(session.in_context(context), query,
                  {.reply_bytes = sizeof(wire::ImageQueryReply)}, &questions[i - first]);
    if (!with_bytes) continue;
    const CUresult sent =
        send_bytes(session, context, image.hashes[i], image.parts[i], wire::kMaxInlineBytes);
    if (sent != CUDA_SUCCESS) failed = sent;
  }
  also();
  for (size_t i = first; i < last; ++i) {
    bool present = false;
    const CUresult result = read_answer(session, questions[i - first], &present);
    if (result != CUDA_SUCCESS) failed = result;
    if (result == CUDA_SUCCESS) session.images().note(image.hashes[i], !present);
    if (!present && !with_bytes) missing->push_back(i);
  }
  return failed;
}

// Sends the parts that the worker lacks. Calls `also` after the last queries, unless a part of an
// earlier group is missing. Sets `lacked` to whether parts were missing.
CUresult send_missing(Session& session, wire::ObjectId context, const ImageParts& image,
                      const std::function<void()>& also, bool* lacked) {
  constexpr size_t kAtOnce = 64;  // parts per group; each takes a reply slot
  const MutexLock lock(session.image_mutex());
  const bool with_bytes = goes_with_question(session, image);
  const size_t chunk_bytes =
      goes_in_commands(session, image) ? wire::kMaxInlineBytes : Staging::kSlotBytes;
  std::vector<size_t> missing;
  const size_t count = image.parts.size();
  for (size_t first = 0; first < count; first += kAtOnce) {
    const size_t last = std::min(count, first + kAtOnce);
    RCUDA_RETURN_IF_CUDA_ERROR(ask(session, context, image, first, last, with_bytes, &missing, [&] {
      if (last == count && missing.empty()) also();
    }));
  }
  *lacked = !missing.empty();
  for (const size_t i : missing) {
    RCUDA_RETURN_IF_CUDA_ERROR(
        send_bytes(session, context, image.hashes[i], image.parts[i], chunk_bytes));
  }
  return CUDA_SUCCESS;
}

// Returns the result of a load after the image was sent. CUDA_ERROR_NOT_READY means that the worker
// still lacks the image: the bytes that it received do not match the hash.
CUresult loaded(CUresult result) {
  return result == CUDA_ERROR_NOT_READY ? CUDA_ERROR_INVALID_IMAGE : result;
}

}  // namespace

ImageHash hash_image(std::span<const std::byte> image) {
  ImageHash hash;
  SHA256_CTX context;
  SHA256_Init(&context);
  SHA256_Update(&context, image.data(), image.size());
  SHA256_Final(hash.data(), &context);
  return hash;
}

CUresult call_with_images(Session& session, wire::ObjectId context, const ImageParts& image,
                          const ImageCommand& command, std::optional<Reply>* reply) {
  const Route route = session.in_context(context);
  std::optional<Session::PendingCall> early;
  const auto send_early = [&] {
    session.begin(route, command.command, {.reply_bytes = command.reply_bytes}, &early.emplace());
    if (command.behind) command.behind();
  };
  bool lacked = false;
  CUresult result = send_missing(session, context, image, send_early, &lacked);
  if (early) {
    const CUresult answer = loaded(session.finish(*early, &reply->emplace()));
    if (result == CUDA_SUCCESS && !lacked) {
      if (answer != CUDA_SUCCESS) note_refusal(answer);
      return answer;
    }
  }
  if (result != CUDA_SUCCESS) return result;
  return loaded(session.call(route, command.command, command.reply_bytes, &reply->emplace()));
}

CUresult send_image(Session& session, wire::ObjectId context, const ImageHash& hash,
                    std::span<const std::byte> image) {
  bool lacked = false;
  return send_missing(
      session, context, {{image}, {hash}, {}}, [] {}, &lacked);
}

}  // namespace rcuda::client
