#include "client/memory/copy.h"

#include <cstring>
#include <memory>

#include "client/memory/locate.h"
#include "client/memory/mirror.h"
#include "client/session/capture.h"
#include "client/session/host_functions.h"
#include "client/session/process.h"
#include "client/session/staging.h"

namespace rcuda::client {
namespace {

// What a small copy may take back in a reply.
constexpr size_t kMaxReplyBytes = wire::ClientWindow::kLargeReplyBytes - 1024;

template <typename Body>
CUresult post_body(const CopyStream& stream, wire::Custom opcode, const Body& body,
                   std::span<const std::byte> tail = {}) {
  return stream.target.session->post(stream.target.context, static_cast<uint16_t>(opcode),
                                     std::as_bytes(std::span(&body, 1)), tail);
}

CUresult finish(const CopyStream& stream, bool synchronous) {
  return synchronous ? stream.target.session->synchronize(stream.target.context, stream.id)
                     : CUDA_SUCCESS;
}

CUresult copy_in_worker(const CopyStream& stream, uint64_t destination, uint64_t source, size_t bytes,
                        bool synchronous) {
  wire::CopyBody body{};
  body.destination = destination;
  body.source = source;
  body.bytes = bytes;
  body.stream = stream.id;
  const CUresult result = post_body(stream, wire::Custom::kCopy, body);
  return result == CUDA_SUCCESS ? finish(stream, synchronous) : result;
}

CUresult copy_from_pageable(const CopyStream& stream, CUdeviceptr destination, const void* source,
                            size_t bytes) {
  if (bytes <= wire::kMaxInlineBytes) {
    const wire::CopyInlineBody body{destination, static_cast<uint32_t>(bytes), stream.id};
    return post_body(stream, wire::Custom::kCopyInline, body,
                     {static_cast<const std::byte*>(source), bytes});
  }
  return stream.target.session->staging().to_device(stream.target.context, stream.id, destination,
                                                    source, bytes);
}

CUresult copy_to_pageable(const CopyStream& stream, void* destination, CUdeviceptr source,
                          size_t bytes) {
  Session& session = *stream.target.session;
  if (bytes > kMaxReplyBytes) {
    return session.staging().to_host(stream.target.context, stream.id, destination, source, bytes);
  }
  const wire::CopyToReplyBody body{source, static_cast<uint32_t>(bytes), stream.id};
  Reply reply;
  const CUresult result =
      session.call(stream.target.context, static_cast<uint16_t>(wire::Custom::kCopyToReply),
                   std::as_bytes(std::span(&body, 1)), {}, bytes, &reply);
  if (result != CUDA_SUCCESS) return result;
  if (reply.body().size() != bytes) return CUDA_ERROR_UNKNOWN;
  std::memcpy(destination, reply.body().data(), bytes);
  return pull_mirrors(session);
}

// Host to host, in stream order as far as the host can see: after what the stream had to do.
CUresult copy_on_host(const LinearCopy& copy) {
  Target target;
  wire::ObjectId id;
  if (CUresult result = resolve(copy.stream, wire::Kind::kStream, &target, &id);
      result != CUDA_SUCCESS) {
    return result;
  }
  if (CUresult result = target.session->synchronize(target.context, id); result != CUDA_SUCCESS) {
    return result;
  }
  std::memmove(reinterpret_cast<void*>(copy.destination), reinterpret_cast<const void*>(copy.source),
               copy.bytes);
  return CUDA_SUCCESS;
}

// Between servers, by way of this process. The issuing stream is waited for first, so the copy comes
// after everything posted to it, and the destination's default stream orders what follows.
CUresult relay(const LinearCopy& copy, const Location& destination, const Location& source) {
  CopyStream from, to;
  if (CUresult result = stream_at(source.owner, copy.stream, &from); result != CUDA_SUCCESS) {
    return result;
  }
  if (CUresult result = stream_at(destination.owner, copy.stream, &to); result != CUDA_SUCCESS) {
    return result;
  }
  constexpr size_t kPiece = 16u << 20;
  const size_t piece = std::min(copy.bytes, kPiece);
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(piece);
  for (size_t at = 0; at < copy.bytes; at += piece) {
    const size_t length = std::min(piece, copy.bytes - at);
    CUresult result = copy_to_pageable(from, buffer.get(), copy.source + at, length);
    if (result == CUDA_SUCCESS) {
      result = copy_from_pageable(to, copy.destination + at, buffer.get(), length);
    }
    if (result != CUDA_SUCCESS) return result;
  }
  // The other stream of the two is not this copy's: it must not run ahead of it.
  return to.target.session->synchronize(to.target.context, to.id);
}

}  // namespace

CUresult copy_linear(const LinearCopy& copy) {
  Target target;
  if (CUresult result = target_current(&target); result != CUDA_SUCCESS) return result;
  if (copy.bytes == 0) return CUDA_SUCCESS;
  Location destination, source;
  if (CUresult result = locate(copy.destination, copy.bytes, copy.destination_side, &destination);
      result != CUDA_SUCCESS) {
    return result;
  }
  if (CUresult result = locate(copy.source, copy.bytes, copy.source_side, &source);
      result != CUDA_SUCCESS) {
    return result;
  }
  const bool to_device = destination.home == Home::kDevice;
  const bool from_device = source.home == Home::kDevice;
  if (to_device && from_device && destination.owner.session != source.owner.session) {
    return relay(copy, destination, source);
  }
  const bool pageable = destination.home == Home::kPageable || source.home == Home::kPageable;
  if (!to_device && !from_device && pageable) return copy_on_host(copy);

  CopyStream stream;
  const Target& owner = to_device ? destination.owner : from_device ? source.owner : target;
  if (CUresult result = stream_at(owner, copy.stream, &stream); result != CUDA_SUCCESS) return result;
  if (!pageable) {
    // Between two device addresses the host never waits, whatever the function's name says.
    const bool waits = copy.synchronous && !(to_device && from_device);
    return copy_in_worker(stream, copy.destination, copy.source, copy.bytes, waits);
  }
  if (may_capture(copy.stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (to_device) {
    return copy_from_pageable(stream, copy.destination, reinterpret_cast<const void*>(copy.source),
                              copy.bytes);
  }
  return copy_to_pageable(stream, reinterpret_cast<void*>(copy.destination), copy.source, copy.bytes);
}

}  // namespace rcuda::client
