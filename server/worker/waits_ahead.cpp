#include "server/worker/waits_ahead.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "api/traits.h"

namespace rcuda::server {
namespace {

bool is(const wire::CommandHeader& header, wire::Custom opcode) {
  return header.opcode == static_cast<uint16_t>(opcode);
}

}  // namespace

// Examines the next frame. Returns false if no later command may overtake it.
bool WaitsAhead::view(const wire::RingReader::Ahead& frame) {
  const Frame request = std::exchange(request_, {});
  const auto payload = std::span(bytes_).first(std::min(frame.payload_bytes, bytes_.size()));
  wire::CommandHeader header;
  if (payload.size() < sizeof header) return false;
  std::memcpy(&header, payload.data(), sizeof header);
  if (header.flags & wire::kFlagTraced) return false;
  const bool alone = request.number <= ring_.taken();  // there is no request before this command
  const bool is_request = is(header, wire::Custom::kMirrorNews);
  if (!is_request && !is(header, wire::Custom::kWatchEvent)) {
    return alone && api::traits_of(header.opcode).overtaken;
  }
  if (frame.payload_bytes > payload.size()) return false;
  Frame seen{frame.number, {payload.begin(), payload.end()}};
  if (is_request) {
    request_ = std::move(seen);
    return alone;
  }
  wire::WatchEventBody body;
  if (payload.size() != sizeof header + sizeof body) return false;
  std::memcpy(&body, payload.data() + sizeof header, sizeof body);
  if (body.record == 0 || found_.size() == kMostWaits) return false;
  Wait& wait = found_.emplace_back();
  wait.record = body.record;
  if (!alone) wait.frames.push_back(request);
  wait.frames.push_back(std::move(seen));
  return true;
}

void WaitsAhead::search() {
  for (int i = 0; i < kMostLooks && barrier_ <= ring_.taken(); ++i) {
    const std::optional<wire::RingReader::Ahead> ahead = ring_.look(bytes_);
    if (!ahead) return;
    if (!view(*ahead)) {
      request_ = {};
      barrier_ = ahead->number;
    }
  }
}

std::vector<WaitsAhead::Payload> WaitsAhead::next(uint64_t commands) {
  search();
  if (found_.empty()) [[likely]]
    return {};
  // Drops waits that the executor has executed in the order of the ring.
  std::erase_if(found_, [taken = ring_.taken()](const Wait& wait) {
    return wait.frames.front().number <= taken;
  });
  const auto due = std::ranges::find_if(
      found_, [commands](const Wait& wait) { return wait.record <= commands; });
  if (due == found_.end()) return {};
  std::vector<Payload> payloads;
  for (Frame& frame : due->frames) {
    ahead_.insert(std::ranges::upper_bound(ahead_, frame.number), frame.number);
    payloads.push_back(std::move(frame.payload));
  }
  found_.erase(due);
  return payloads;
}

bool WaitsAhead::was_ahead() {
  // A client that changes frames in the ring can make try_next() skip frames.
  while (!ahead_.empty() && ahead_.front() < ring_.taken()) ahead_.pop_front();
  if (ahead_.empty() || ahead_.front() != ring_.taken()) return false;
  ahead_.pop_front();
  return true;
}

}  // namespace rcuda::server
