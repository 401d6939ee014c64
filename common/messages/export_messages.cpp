#include "common/messages/export_messages.h"

#include <algorithm>

#include "common/base/socket_io.h"
#include "common/messages/message_codec.h"
#include "common/messages/refusal.h"
#include "common/tls/keyed.h"

namespace rcuda::wire {

ExportPlace export_place(const std::string& owner, const ExportNumber& worker) {
  tls::Key number{};
  std::copy(worker.begin(), worker.end(), number.begin());
  return tls::derive(number, "rcuda exports of " + owner);
}

template <typename Visitor>
void fields(Visitor& visit, ExportQuery& m) {
  static constexpr const char* kKinds[] = {"allocation", "pool",  "pool_pointer",
                                           "memory",     "event", "movable"};
  visit.bytes("place", m.place);
  visit.choice("kind", m.kind, kKinds);
  visit.bytes("secret", m.secret);
}
template struct Codec<ExportQuery>;

Status write_export_answer(int socket, const ExportNote& note, int descriptor) {
  const std::vector<std::byte> message =
      message_bytes(MessageType::kExportAnswer, {note.begin(), note.end()});
  return send_with_fds(socket, message, {&descriptor, descriptor >= 0 ? 1u : 0u},
                       std::chrono::steady_clock::now());
}

Result<ExportAnswer> read_export_answer(int socket,
                                        std::chrono::steady_clock::time_point deadline) {
  // Enough for an ExportAnswer, and for a Refusal, whose text is short.
  constexpr uint32_t kMaxBody = 64u << 10;
  MessageHeader header;
  std::vector<UniqueFd> descriptors;
  RCUDA_RETURN_IF_ERROR(recv_with_fds(socket, writable_bytes_of(header), descriptors, deadline));
  RCUDA_RETURN_IF_ERROR(check_header(header));
  if (header.body_bytes > kMaxBody) return malformed("ExportAnswer");
  std::vector<std::byte> body(header.body_bytes);
  RCUDA_RETURN_IF_ERROR(recv_with_fds(socket, body, descriptors, deadline));
  if (header.type == MessageType::kRefusal) {
    return refusal_error(body, "the lookup of an exported handle was refused", Code::kUnavailable);
  }
  ExportAnswer answer;
  if (header.type != MessageType::kExportAnswer || body.size() != answer.note.size()) {
    return malformed("ExportAnswer");
  }
  std::copy(body.begin(), body.end(), answer.note.begin());
  if (!descriptors.empty()) answer.descriptor = std::move(descriptors.front());
  return answer;
}

}  // namespace rcuda::wire
