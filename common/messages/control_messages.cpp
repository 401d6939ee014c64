#include "common/messages/control_messages.h"

#include "common/messages/message_codec.h"

namespace rcuda::wire {

template <typename Visitor>
void fields(Visitor& visit, ControlRequest& m) {
  static constexpr const char* kOperations[] = {"end",    "drain", "resume", "ask",
                                                "reload", "park",  "wake",   "move"};
  visit.choice("operation", m.operation, kOperations);
  visit.number("worker_pid", m.worker_pid);
  visit.optional("from", m.from);
  visit.optional("to", m.to);
}
template struct Codec<ControlRequest>;

template <typename Visitor>
void fields(Visitor& visit, ControlAnswer& m) {
  visit.number("sessions", m.sessions);
  visit.text("text", m.text);
  visit.flag("draining", m.draining);
}
template struct Codec<ControlAnswer>;

}  // namespace rcuda::wire
