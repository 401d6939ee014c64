#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "client/copy/copy.h"
#include "client/copy/peer.h"
#include "client/copy/peer_node.h"
#include "client/copy/plan.h"
#include "client/copy/stand_in.h"
#include "client/mirror/mirror.h"
#include "client/objects/named.h"
#include "client/process/own_addresses.h"
#include "client/process/process.h"
#include "client/route/capture.h"
#include "client/session/calls_in_flight.h"
#include "client/session/reached_place.h"
#include "client/session/staging.h"
#include "client/session/timeline.h"
#include "client/session/wait.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

// Copies of pageable memory up to these sizes travel in commands and replies. Larger copies go
// through the staging region, which saves the worker one copy of the bytes, but over sockets costs
// the client round trips. So over sockets a larger limit applies, in both directions.
constexpr size_t kSmallToDevice = 8u << 10;
constexpr size_t kSmallToHost = CallsInFlight::kMostReplyBytes;
constexpr size_t kSmallOverSockets = 256u << 10;
// Up to this size, a blocking copy of page-locked memory to the device over sockets is faster
// through the worker's shadow than through the staging region: 1.4 times as fast for 1 MB, 1.1
// times for 16 MB, 0.8 times for 64 MB (H100, loopback).
constexpr size_t kMostInShadow = 32u << 20;
// A copy of at most this size to the device does not wait for a staging slot. A driver, too,
// buffers copies of up to 64 KB of pageable memory, so that the caller never waits for the stream.
constexpr size_t kStagedByDrivers = 64u << 10;

// Returns the memory of a copy, for the comparison with other copies in progress. Returns all
// addresses for memory that the application has registered: it may be mapped at several addresses,
// so two copies may overlap although their addresses do not.
AddressRange memory_of_copy(uint64_t address, size_t bytes) {
  const wire::AddressWindow& ours = host_addresses();
  const bool is_ours = address >= ours.base && address - ours.base < ours.bytes;
  return is_ours ? AddressRange{address, address + bytes} : HostWrite::kAll;
}

// Whether no work in progress can write to this page-locked memory any more. Returns false for
// mirrored memory, because kernels can write to it.
bool source_is_settled(uint64_t source, size_t bytes) {
  return !Timeline::may_write(memory_of_copy(source, bytes)) && mirrored_in(source, bytes).empty();
}

// For a copy to the device whose source a stream of another server writes: if the copy's stream
// waits for that stream, sends the source as soon as it is written
// (client/session/reached_places.h). Returns the first immediate of the writes, or 0 if nothing is
// sent.
uint32_t send_when_written(const Route& route, uint64_t source, size_t bytes) {
  if (!route.timeline || !mirrored_in(source, bytes).empty()) return 0;
  const std::shared_ptr<ReachedPlace> place =
      route.timeline->place_after_writes(memory_of_copy(source, bytes));
  if (!place) return 0;
  Session& session = *route.session;
  ShadowRegions::Later later =
      session.shadows().send_later(session.link(), source, bytes, transport::Company::kAlone);
  if (later.immediate != 0) place->call(std::move(later.begin));
  return later.immediate;
}

wire::CopyBody body_of(const LinearCopy& copy, const CopyStream& stream,
                       const Location& destination, const Location& source, uint32_t flags = 0) {
  wire::CopyBody body{};
  body.destination = copy.destination;
  body.source = copy.source;
  body.bytes = copy.bytes;
  body.stream = stream.route.id;
  body.flags = flags;
  if (copy.peer && destination.home == Home::kDevice && source.home == Home::kDevice) {
    body.destination_context = destination.owner->context;
    body.source_context = source.owner->context;
  }
  return body;
}

CUresult copy_in_worker(const CopyStream& stream, wire::CopyBody body, const CopyPlan& plan) {
  Session& session = *stream.route.session;
  // kSourceReady allows the worker to fetch the source early. Where pages are shared, it fetches
  // nothing.
  if (!session.traits().shares_pages) {
    const bool is_settled = source_is_settled(body.source, body.bytes);
    if (!plan.captures && !plan.mirrored) {
      const auto company = plan.waits ? transport::Company::kAwaited : transport::Company::kAlone;
      body.immediate =
          is_settled ? session.shadows().send(session.link(), body.source, body.bytes, company)
                     : send_when_written(stream.route, body.source, body.bytes);
    }
    if (is_settled || body.immediate != 0) body.flags |= wire::kSourceReady;
  }
  return plan.waits ? Wait(stream.route).run(body) : post(stream.route, body);
}

// Sends all pieces even if an earlier command of the session has failed; returns that error at the
// end.
CUresult send_pageable(const CopyStream& stream, CUdeviceptr destination, const void* source,
                       size_t bytes) {
  Session& session = *stream.route.session;
  const size_t small = session.traits().copies_by_cpu ? kSmallOverSockets : kSmallToDevice;
  if (bytes > small && (bytes > kStagedByDrivers || session.staging().has_room())) {
    RCUDA_RETURN_IF_CUDA_ERROR(
        session.staging().to_device(stream.route, destination, source, bytes));
    return session.take_error();
  }
  for (size_t at = 0; at < bytes;) {
    const size_t length = std::min<size_t>(bytes - at, wire::kMaxInlineBytes);
    const wire::CopyInlineBody body{destination + at, static_cast<uint32_t>(length),
                                    stream.route.id};
    RCUDA_RETURN_IF_CUDA_ERROR(
        session.post(stream.route, {body, {static_cast<const std::byte*>(source) + at, length}}));
    at += length;
  }
  return session.take_error();
}

// Copies through replies. Sends all commands before it waits for the first reply.
CUresult fetch(const CopyStream& stream, std::byte* destination, CUdeviceptr source, size_t bytes) {
  CUresult result = CUDA_SUCCESS;
  CallsInFlight calls;
  calls.add_copy(stream.route, destination, source, bytes, &result);
  calls.finish();
  return result;
}

CUresult copy_to_pageable(const CopyStream& stream, void* destination, CUdeviceptr source,
                          size_t bytes) {
  Session& session = *stream.route.session;
  Wait wait(stream.route);
  wait.start();
  CUresult result;
  if (bytes > (session.traits().copies_by_cpu ? kSmallOverSockets : kSmallToHost)) {
    result = session.staging().to_host(stream.route, destination, source, bytes);
  } else {
    result = fetch(stream, static_cast<std::byte*>(destination), source, bytes);
  }
  return result == CUDA_SUCCESS ? wait.finish() : result;
}

// Adds the copy to the graph that the stream captures, with stand-ins for pageable memory
// (stand_in.h). Waits for the worker's answer: if the worker refuses the copy, the stand-ins are
// removed.
CUresult capture_copy(const LinearCopy& copy, const Location& destination, const Location& source,
                      const CopyStream& stream) {
  Session& session = *stream.route.session;
  wire::CopyBody body = body_of(copy, stream, destination, source);
  std::vector<uint64_t> callbacks;
  const auto replace = [&](const Location& location, uint64_t* address, bool is_source) {
    if (location.home != Home::kPageable) return CUDA_SUCCESS;
    HostRows row;
    row.first = *address;
    row.width_bytes = copy.bytes;
    StandIn made;
    RCUDA_RETURN_IF_CUDA_ERROR(make_stand_in(session, stream.route.context, row, is_source, &made));
    callbacks.push_back(made.callback);
    *address = made.first;
    return CUDA_SUCCESS;
  };
  CUresult result = replace(destination, &body.destination, false);
  if (result == CUDA_SUCCESS) result = replace(source, &body.source, true);
  if (result == CUDA_SUCCESS) result = session.call(stream.route, body);
  if (result != CUDA_SUCCESS) {
    for (const uint64_t callback : callbacks) session.events().remove_callback(callback);
  }
  return result;
}

// Makes a blocking copy of page-locked memory over sockets like a copy of pageable memory. Used
// where page-locked memory has no advantage: for all copies to the host, and for copies of at most
// kSmallOverSockets or more than kMostInShadow bytes to the device.
CUresult copy_page_locked(const CopyStream& stream, const LinearCopy& copy, bool to_device) {
  if (!to_device) {
    return copy_to_pageable(stream, reinterpret_cast<void*>(copy.destination), copy.source,
                            copy.bytes);
  }
  if (!source_is_settled(copy.source, copy.bytes)) {
    RCUDA_RETURN_IF_CUDA_ERROR(synchronize(stream.route));
  }
  RCUDA_RETURN_IF_CUDA_ERROR(send_pageable(stream, copy.destination,
                                           reinterpret_cast<const void*>(copy.source), copy.bytes));
  return synchronize(stream.route);
}

// Makes a copy whose two sides have addresses in the worker.
CUresult copy_addressed(const LinearCopy& copy, const Location& destination, const Location& source,
                        const CopyPlan& plan) {
  const CopyStream& stream = *plan.stream;
  const bool to_device = destination.home == Home::kDevice;
  const bool from_device = source.home == Home::kDevice;
  if (stream.route.session->traits().copies_by_cpu && to_device != from_device && !plan.mirrored &&
      !plan.captures) {
    const bool in_shadow =
        to_device && copy.bytes > kSmallOverSockets && copy.bytes <= kMostInShadow;
    if (plan.waits && !in_shadow) return copy_page_locked(stream, copy, to_device);
    if (to_device && copy.bytes <= kSmallOverSockets &&
        source_is_settled(copy.source, copy.bytes)) {
      return send_pageable(stream, copy.destination, reinterpret_cast<const void*>(copy.source),
                           copy.bytes);
    }
  }
  const HostWrite writing(!plan.waits && !to_device ? stream.route.timeline : nullptr,
                          memory_of_copy(copy.destination, copy.bytes));
  const wire::CopyBody body = body_of(copy, stream, destination, source, plan.mirrored);
  if (!plan.waits && (needs_access(destination, stream) || needs_access(source, stream))) {
    return stream.route.session->call(stream.route, body);
  }
  return copy_in_worker(stream, body, plan);
}

CUresult copy_from_pageable(const LinearCopy& copy, const Location& destination,
                            const CopyPlan& plan) {
  std::optional<CaptureAnswers> answers;
  if (needs_access(destination, *plan.stream)) answers.emplace(true);
  const CUresult result = send_pageable(*plan.stream, copy.destination,
                                        reinterpret_cast<const void*>(copy.source), copy.bytes);
  if (plan.mirrored) plan.stream->route.session->mirrors().note_write();
  const bool waits = plan.waits || (plan.mirrored && copy.synchronous);
  return result == CUDA_SUCCESS && waits ? synchronize(plan.stream->route) : result;
}

CUresult copy_on_servers(const LinearCopy& copy, const Location& destination,
                         const Location& source) {
  const CopyBetweenServers between{
      {*destination.owner, copy.destination}, {*source.owner, copy.source}, {copy.bytes}};
  return issue_between_servers(between, copy.stream, copy.synchronous);
}

}  // namespace

CUresult copy_linear(const LinearCopy& copy) {
  RCUDA_RETURN_IF_CUDA_ERROR(check_copy(copy.stream));
  if (copy.bytes == 0) return CUDA_SUCCESS;
  Location destination, source;
  RCUDA_RETURN_IF_CUDA_ERROR(
      locate(copy.destination, copy.bytes, copy.destination_side, &destination));
  RCUDA_RETURN_IF_CUDA_ERROR(locate(copy.source, copy.bytes, copy.source_side, &source));
  CopyPlan plan;
  RCUDA_RETURN_IF_CUDA_ERROR(
      prepare_copy(destination, source, copy.stream, copy.synchronous, true, &plan));
  switch (plan.way) {
    case CopyWay::kBetweenServers:
      return copy_on_servers(copy, destination, source);
    case CopyWay::kCapturePageable:
      return capture_copy(copy, destination, source, *plan.stream);
    case CopyWay::kOnHost:
      std::memmove(reinterpret_cast<void*>(copy.destination),
                   reinterpret_cast<const void*>(copy.source), copy.bytes);
      return CUDA_SUCCESS;
    case CopyWay::kInWorker:
      return copy_addressed(copy, destination, source, plan);
    case CopyWay::kFromPageable:
      return copy_from_pageable(copy, destination, plan);
    case CopyWay::kToPageable:
      return copy_to_pageable(*plan.stream, reinterpret_cast<void*>(copy.destination), copy.source,
                              copy.bytes);
  }
  return CUDA_ERROR_UNKNOWN;
}

}  // namespace rcuda::client
