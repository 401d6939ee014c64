#include "client/calls/images.h"

// The low-level digest functions. EVP would link all of libcrypto's providers into every process
// that preloads this library.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <algorithm>
#include <cstring>
#include <mutex>

#include <openssl/sha.h>

#include "client/channel/staging.h"

namespace rcuda::client {
namespace {

template <typename Body>
std::span<const std::byte> bytes_of(const Body& body) {
  return std::as_bytes(std::span(&body, 1));
}

CUresult send_chunk(Session& session, wire::ObjectId context, const ImageHash& hash,
                    std::span<const std::byte> image, size_t offset, size_t length) {
  wire::ImageChunkBody body{};
  std::memcpy(body.sha256, hash.data(), hash.size());
  body.offset = offset;
  body.bytes = static_cast<uint32_t>(length);
  const auto opcode = static_cast<uint16_t>(wire::Custom::kImageChunk);
  if (length <= wire::kMaxInlineBytes) {
    body.staging_offset = ~uint64_t{0};
    return session.post(session.in_context(context), opcode, bytes_of(body),
                        image.subspan(offset, length));
  }
  Staging::Slot slot = session.staging().acquire(nullptr);
  CUresult result = session.staging().fill(slot, image.data() + offset, length);
  if (result == CUDA_SUCCESS) {
    body.staging_offset = slot.offset;
    body.word = slot.word.index;
    body.sequence = slot.word.sequence;
    result = session.post(session.in_context(context), opcode, bytes_of(body));
  } else {
    --slot.word.sequence;  // no command carries this sequence
  }
  session.staging().release(slot);
  return result;
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

CUresult send_image(Session& session, wire::ObjectId context, const ImageHash& hash,
                    std::span<const std::byte> image) {
  const std::lock_guard lock(session.image_mutex());
  wire::ImageQueryBody query{};
  std::memcpy(query.sha256, hash.data(), hash.size());
  query.bytes = image.size();
  uint32_t present = 0;
  {
    Reply reply;
    const CUresult result =
        session.call(session.in_context(context), static_cast<uint16_t>(wire::Custom::kImageQuery),
                     bytes_of(query), {}, sizeof(wire::ImageQueryReply), &reply);
    if (result != CUDA_SUCCESS) return result;
    if (reply.body().size() < sizeof present) return CUDA_ERROR_UNKNOWN;
    std::memcpy(&present, reply.body().data(), sizeof present);
  }
  if (present) return CUDA_SUCCESS;
  for (size_t offset = 0; offset < image.size(); offset += Staging::kSlotBytes) {
    const size_t length = std::min(Staging::kSlotBytes, image.size() - offset);
    if (CUresult result = send_chunk(session, context, hash, image, offset, length);
        result != CUDA_SUCCESS) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace rcuda::client
