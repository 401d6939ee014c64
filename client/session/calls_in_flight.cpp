#include "client/session/calls_in_flight.h"

#include <cstring>
#include <utility>

namespace rcuda::client {

void CallsInFlight::add(const Route& route, const wire::Command& command, size_t reply_bytes,
                        Take take) {
  Pending& pending = pending_.emplace_back();
  pending.session = route.session;
  pending.timeline = route.timeline;
  pending.take = std::move(take);
  // Only the first call waits for a free slot: two threads that hold slots and wait for each
  // other's slots would deadlock.
  const auto options = [&] {
    return CallOptions{.reply_bytes = reply_bytes, .patient = pending_.size() == 1};
  };
  while (!route.session->begin(route, command, options(), &pending.call)) take_oldest();
}

void CallsInFlight::add_copy(const Route& route, std::byte* to, CUdeviceptr from, size_t bytes,
                             CUresult* result) {
  const size_t pieces = (bytes + kMostReplyBytes - 1) / kMostReplyBytes;
  for (size_t i = 0, at = 0; i < pieces; ++i) {
    const size_t length = (bytes - at + pieces - i - 1) / (pieces - i);
    const wire::CopyToReplyBody body{from + at, static_cast<uint32_t>(length), stream_id(route)};
    const auto take = [to = to + at, length, result](CUresult copied, const Reply& reply) {
      if (copied == CUDA_SUCCESS && reply.body().size() != length) copied = CUDA_ERROR_UNKNOWN;
      if (copied == CUDA_SUCCESS) {
        std::memcpy(to, reply.body().data(), length);
      } else if (*result == CUDA_SUCCESS) {
        *result = copied;
      }
    };
    add(route, body, length, take);
    at += length;
  }
}

void CallsInFlight::finish() {
  while (!pending_.empty()) take_oldest();
}

void CallsInFlight::take_oldest() {
  Pending& oldest = pending_.front();
  {
    Reply reply;
    const CUresult result = oldest.session->finish(oldest.call, &reply);
    // The worker answers a copy when its stream has reached the copy, so everything up to the copy
    // is done.
    if (result == CUDA_SUCCESS && oldest.timeline)
      oldest.timeline->waited(oldest.call.sent.position);
    oldest.take(result, reply);
  }
  pending_.pop_front();
}

}  // namespace rcuda::client
