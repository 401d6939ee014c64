#include "common/wire/control_messages.h"

#include "common/wire/forms.h"
#include "common/wire/message_codec.h"

namespace rcuda::wire {

std::vector<std::byte> encode(const ControlRequest& message) {
  MessageWriter out;
  out.number(form_of(MessageType::kControlRequest));
  out.number(static_cast<uint32_t>(message.operation));
  out.number(message.worker_pid);
  return out.take();
}

Result<ControlRequest> decode_control_request(const std::vector<std::byte>& body) {
  MessageReader in(body);
  RCUDA_RETURN_IF_ERROR(read_form(in, MessageType::kControlRequest));
  ControlRequest message;
  uint32_t operation = 0;
  in.number(&operation);
  in.number(&message.worker_pid);
  message.operation = static_cast<ControlOperation>(operation);
  if (!in.complete() || operation < static_cast<uint32_t>(ControlOperation::kEnd) ||
      operation > static_cast<uint32_t>(ControlOperation::kAsk)) {
    return malformed("ControlRequest");
  }
  return message;
}

std::vector<std::byte> encode(const ControlAnswer& message) {
  MessageWriter out;
  out.number(form_of(MessageType::kControlAnswer));
  out.number(message.sessions);
  out.flag(message.draining);
  return out.take();
}

Result<ControlAnswer> decode_control_answer(const std::vector<std::byte>& body) {
  MessageReader in(body);
  RCUDA_RETURN_IF_ERROR(read_form(in, MessageType::kControlAnswer));
  ControlAnswer message;
  in.number(&message.sessions);
  in.flag(&message.draining);
  if (!in.complete()) return malformed("ControlAnswer");
  return message;
}

}  // namespace rcuda::wire
