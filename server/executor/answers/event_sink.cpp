#include "server/executor/answers/event_sink.h"

#include <chrono>

namespace rcuda::server {
namespace {

constexpr size_t kMaxTextBytes = 16u << 10;

template <typename T>
std::span<const std::byte> bytes_of(const T& item) {
  return std::as_bytes(std::span(&item, 1));
}

wire::OutputEvent output_event(bool is_stderr, std::string_view text) {
  wire::OutputEvent event{};
  event.header = {wire::Event::kOutput,
                  static_cast<uint32_t>(sizeof event - sizeof event.header + text.size())};
  event.is_stderr = is_stderr;
  event.text_bytes = static_cast<uint32_t>(text.size());
  return event;
}

}  // namespace

Status EventSink::append(std::span<const std::byte> head, std::span<const std::byte> body) {
  MutexLock lock(mutex_);
  return ring_.append(head, body, transport::Wake::kYes);
}

Status EventSink::try_append(std::span<const std::byte> head, std::span<const std::byte> body) {
  MutexLock lock(mutex_, std::defer_lock);
  if (!lock.try_lock()) return {Code::kTimeout, "another thread is writing to the event ring"};
  return ring_.append(head, body, transport::Wake::kYes,
                      std::chrono::steady_clock::time_point::min());
}

Status EventSink::ready(const transport::Region& staging, const transport::Region& marks,
                        size_t gates) {
  wire::ReadyEvent event{{wire::Event::kReady, sizeof event - sizeof event.header},
                         static_cast<uint64_t>(staging.id),
                         staging.bytes,
                         static_cast<uint64_t>(marks.id),
                         marks.bytes,
                         gates};
  return append(bytes_of(event), {});
}

Status EventSink::host_callback(uint64_t callback, uint32_t slot, uint64_t sequence,
                                CUresult status, uint64_t loan) {
  wire::HostCallbackEvent event{};
  event.header = {wire::Event::kHostCallback, sizeof event - sizeof event.header};
  event.callback = callback;
  event.sequence = sequence;
  event.slot = slot;
  event.status = static_cast<uint32_t>(status);
  event.loan = loan;
  return append(bytes_of(event), {});
}

Status EventSink::released(uint64_t callback) {
  const wire::ReleasedEvent event{
      {wire::Event::kReleased, sizeof event - sizeof(wire::EventHeader)}, callback};
  return append(bytes_of(event), {});
}

Status EventSink::output(bool is_stderr, std::string_view text) {
  while (!text.empty()) {
    const std::string_view part = text.substr(0, kMaxTextBytes);
    const wire::OutputEvent event = output_event(is_stderr, part);
    RCUDA_RETURN_IF_ERROR(append(bytes_of(event), std::as_bytes(std::span(part))));
    text.remove_prefix(part.size());
  }
  return {};
}

Status EventSink::try_output(bool is_stderr, std::string_view line) {
  line = line.substr(0, kMaxTextBytes);
  const wire::OutputEvent event = output_event(is_stderr, line);
  return try_append(bytes_of(event), std::as_bytes(std::span(line)));
}

Status EventSink::notice(bool ends, std::string_view text) {
  text = text.substr(0, wire::NoticeEvent::kMostTextBytes);
  wire::NoticeEvent event{};
  event.header = {wire::Event::kNotice,
                  static_cast<uint32_t>(sizeof event - sizeof event.header + text.size())};
  event.ends = ends;
  event.text_bytes = static_cast<uint32_t>(text.size());
  return try_append(bytes_of(event), std::as_bytes(std::span(text)));
}

Status EventSink::trace(std::span<const wire::TraceEvent> events) {
  wire::EventHeader header{wire::Event::kTrace, static_cast<uint32_t>(events.size_bytes())};
  return append(bytes_of(header), std::as_bytes(events));
}

}  // namespace rcuda::server
