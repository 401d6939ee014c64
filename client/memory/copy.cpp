#include "client/memory/copy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "client/memory/host_writes.h"
#include "client/memory/locate.h"
#include "client/memory/mirror.h"
#include "client/memory/peer_copy.h"
#include "client/memory/stand_in.h"
#include "client/session/capture.h"
#include "client/session/process.h"
#include "client/session/staging.h"

namespace rcuda::client {
namespace {

// What one reply may bring back.
constexpr size_t kMaxReplyBytes = wire::ClientWindow::kLargeReplyBytes - 1024;
// Copies of pageable memory up to here travel in commands and replies; larger ones through the
// staging region, which costs the worker a copy less but, over sockets, the client round trips.
constexpr size_t kSmallToDevice = 8u << 10;
constexpr size_t kSmallToHost = kMaxReplyBytes;
constexpr size_t kSmallOverSockets = 256u << 10;

template <typename Body>
CUresult post_body(const CopyStream& stream, wire::Custom opcode, const Body& body) {
  return stream.target.session->post(stream.target.context, static_cast<uint16_t>(opcode),
                                     std::as_bytes(std::span(&body, 1)));
}

// Whether nothing under way can still write to this process's page-locked memory.
bool source_is_settled() { return !host_writes::pending() && !any_mirrored(); }

wire::CopyBody body_of(const LinearCopy& copy, const CopyStream& stream,
                       const Location& destination, const Location& source, uint32_t flags = 0) {
  wire::CopyBody body{};
  body.destination = copy.destination;
  body.source = copy.source;
  body.bytes = copy.bytes;
  body.stream = stream.id;
  body.flags = flags;
  if (copy.peer && destination.home == Home::kDevice && source.home == Home::kDevice) {
    body.destination_context = destination.owner.context;
    body.source_context = source.owner.context;
  }
  return body;
}

// A round trip: whoever asks learns whether the worker took the copy.
CUresult ask_to_copy(const CopyStream& stream, const wire::CopyBody& body) {
  Reply reply;
  return stream.target.session->call(stream.target.context,
                                     static_cast<uint16_t>(wire::Custom::kCopy),
                                     std::as_bytes(std::span(&body, 1)), {}, 0, &reply);
}

CUresult copy_in_worker(const CopyStream& stream, wire::CopyBody body, bool synchronous) {
  if (source_is_settled()) body.flags |= wire::kSourceReady;
  return synchronous ? stream.target.session->post_and_wait(stream.target.context,
                                                            wire::Custom::kCopy, stream.id, body)
                     : post_body(stream, wire::Custom::kCopy, body);
}

// Sends all of it, also where an earlier command has failed, whose error it reports at its end.
CUresult copy_from_pageable(const CopyStream& stream, CUdeviceptr destination, const void* source,
                            size_t bytes) {
  Session& session = *stream.target.session;
  if (bytes > (session.traits().copies_by_cpu ? kSmallOverSockets : kSmallToDevice)) {
    const CUresult result =
        session.staging().to_device(stream.target.context, stream.id, destination, source, bytes);
    return result == CUDA_SUCCESS ? session.take_error() : result;
  }
  for (size_t at = 0; at < bytes;) {
    const size_t length = std::min<size_t>(bytes - at, wire::kMaxInlineBytes);
    const wire::CopyInlineBody body{destination + at, static_cast<uint32_t>(length), stream.id};
    const CUresult result = session.post_only(
        stream.target.context, static_cast<uint16_t>(wire::Custom::kCopyInline),
        std::as_bytes(std::span(&body, 1)), {static_cast<const std::byte*>(source) + at, length});
    if (result != CUDA_SUCCESS) return result;
    at += length;
  }
  return session.take_error();
}

// In replies, all of which are asked for before the first is awaited, if there are slots.
CUresult fetch(const CopyStream& stream, std::byte* destination, CUdeviceptr source, size_t bytes) {
  constexpr size_t kMost = kSmallOverSockets / kMaxReplyBytes + 1;
  Session& session = *stream.target.session;
  const size_t pieces = std::min((bytes + kMaxReplyBytes - 1) / kMaxReplyBytes, kMost);
  const size_t piece = (bytes + pieces - 1) / pieces;
  std::array<Session::Call, kMost> calls;
  CUresult result = CUDA_SUCCESS;
  size_t asked = 0, taken = 0;  // bytes
  size_t first = 0, last = 0;   // calls under way
  while (taken < bytes) {
    while (asked < bytes) {
      const size_t length = std::min(piece, bytes - asked);
      const wire::CopyToReplyBody body{source + asked, static_cast<uint32_t>(length), stream.id};
      if (!session.begin(stream.target.context, static_cast<uint16_t>(wire::Custom::kCopyToReply),
                         std::as_bytes(std::span(&body, 1)), {}, length, first == last,
                         &calls[last % kMost])) {
        break;
      }
      ++last;
      asked += length;
    }
    const size_t length = std::min(piece, bytes - taken);
    Reply reply;
    CUresult copied = session.finish(calls[first++ % kMost], &reply);
    if (copied == CUDA_SUCCESS && reply.body().size() != length) copied = CUDA_ERROR_UNKNOWN;
    if (copied == CUDA_SUCCESS) {
      std::memcpy(destination + taken, reply.body().data(), length);
    } else if (result == CUDA_SUCCESS) {
      result = copied;
    }
    taken += length;
  }
  return result;
}

CUresult copy_to_pageable(const CopyStream& stream, void* destination, CUdeviceptr source,
                          size_t bytes) {
  Session& session = *stream.target.session;
  const host_writes::Settling settling(session, stream.target.context, stream.id, false);
  CUresult result;
  if (bytes > (session.traits().copies_by_cpu ? kSmallOverSockets : kSmallToHost)) {
    result =
        session.staging().to_host(stream.target.context, stream.id, destination, source, bytes);
  } else {
    result = fetch(stream, static_cast<std::byte*>(destination), source, bytes);
  }
  session.learn();
  if (result != CUDA_SUCCESS) return result;
  settling.over();
  return pull_mirrors(session);
}

// Into the graph that the stream is being captured into. A round trip: a copy that the worker
// refused must not leave behind what was made for it.
CUresult capture_copy(const LinearCopy& copy, const Location& destination, const Location& source) {
  const Target owner = destination.home == Home::kDevice ? destination.owner : source.owner;
  CopyStream stream;
  if (CUresult result = stream_at(owner, copy.stream, &stream); result != CUDA_SUCCESS) {
    return result;
  }
  Session& session = *stream.target.session;
  wire::CopyBody body = body_of(copy, stream, destination, source);
  std::vector<uint64_t> callbacks;
  const auto replace = [&](const Location& location, uint64_t* address, bool is_source) {
    if (location.home != Home::kPageable) return CUDA_SUCCESS;
    HostRows row;
    row.first = *address;
    row.width_bytes = copy.bytes;
    StandIn made;
    const CUresult result = make_stand_in(session, stream.target.context, row, is_source, &made);
    if (result != CUDA_SUCCESS) return result;
    callbacks.push_back(made.callback);
    *address = made.first;
    return CUDA_SUCCESS;
  };
  CUresult result = replace(destination, &body.destination, false);
  if (result == CUDA_SUCCESS) result = replace(source, &body.source, true);
  if (result == CUDA_SUCCESS) result = ask_to_copy(stream, body);
  if (result != CUDA_SUCCESS) {
    for (const uint64_t callback : callbacks) session.events().remove_callback(callback);
  }
  return result;
}

// A copy of page-locked memory over sockets, where page-locked buys nothing: a copy that is waited
// for goes the way of pageable memory, which asks the worker once.
CUresult copy_page_locked(const CopyStream& stream, const LinearCopy& copy, bool to_device) {
  Session& session = *stream.target.session;
  if (!to_device) {
    return copy_to_pageable(stream, reinterpret_cast<void*>(copy.destination), copy.source,
                            copy.bytes);
  }
  if (!source_is_settled()) {
    const CUresult result = session.synchronize(stream.target.context, stream.id);
    if (result != CUDA_SUCCESS) return result;
  }
  const CUresult result = copy_from_pageable(
      stream, copy.destination, reinterpret_cast<const void*>(copy.source), copy.bytes);
  return result == CUDA_SUCCESS ? session.synchronize(stream.target.context, stream.id) : result;
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
  std::memmove(reinterpret_cast<void*>(copy.destination),
               reinterpret_cast<const void*>(copy.source), copy.bytes);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult copy_linear(const LinearCopy& copy) {
  Target target;
  if (CUresult result = target_for_copy(copy.stream, &target); result != CUDA_SUCCESS) {
    return result;
  }
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
    PeerCopy between;
    between.destination = {destination.owner, copy.destination};
    between.source = {source.owner, copy.source};
    between.extent.width_bytes = copy.bytes;
    return copy_between_servers(between, copy.stream, copy.synchronous);
  }
  const bool pageable = destination.home == Home::kPageable || source.home == Home::kPageable;
  if (pageable && may_capture(copy.stream)) return capture_copy(copy, destination, source);
  if (!to_device && !from_device && pageable) return copy_on_host(copy);

  CopyStream stream;
  const Target& owner = to_device ? destination.owner : from_device ? source.owner : target;
  if (CUresult result = stream_at(owner, copy.stream, &stream); result != CUDA_SUCCESS)
    return result;
  const StreamUse use(stream.target);
  Session& session = *stream.target.session;
  const uint32_t mirrored =
      (is_mirrored(session, copy.destination, copy.bytes) ? wire::kDestinationMirrored : 0u) |
      (is_mirrored(session, copy.source, copy.bytes) ? wire::kSourceMirrored : 0u);
  if (mirrored && !may_capture(copy.stream)) {
    if (CUresult result = exchange_mirrors(stream, pageable); result != CUDA_SUCCESS) return result;
  }
  if (!pageable) {
    // Within a device the host never waits, whatever the function's name says. Between two devices
    // a synchronous copy has its place in the default streams of both.
    const bool between =
        to_device && from_device && destination.owner.context != source.owner.context;
    const bool waits = copy.synchronous && (between || !(to_device && from_device));
    if (waits && between) {
      const CUresult result = source.owner.session->synchronize(source.owner.context, 0);
      if (result != CUDA_SUCCESS) return result;
    }
    if (session.traits().copies_by_cpu && to_device != from_device && !mirrored &&
        !may_capture(copy.stream)) {
      if (waits) return copy_page_locked(stream, copy, to_device);
      if (to_device && copy.bytes <= kSmallOverSockets && source_is_settled()) {
        return copy_from_pageable(stream, copy.destination,
                                  reinterpret_cast<const void*>(copy.source), copy.bytes);
      }
    }
    if (!waits && !to_device) {
      host_writes::begun(session, stream.target.context, stream.id);
    }
    const wire::CopyBody body = body_of(copy, stream, destination, source, mirrored);
    if (!waits && (needs_access(destination, stream) || needs_access(source, stream))) {
      return ask_to_copy(stream, body);
    }
    return copy_in_worker(stream, body, waits);
  }
  if (to_device) {
    std::optional<CaptureAnswers> answers;
    if (needs_access(destination, stream)) answers.emplace(true);
    const CUresult result = copy_from_pageable(
        stream, copy.destination, reinterpret_cast<const void*>(copy.source), copy.bytes);
    return result == CUDA_SUCCESS && mirrored && copy.synchronous
               ? session.synchronize(stream.target.context, stream.id)
               : result;
  }
  return copy_to_pageable(stream, reinterpret_cast<void*>(copy.destination), copy.source,
                          copy.bytes);
}

}  // namespace rcuda::client
