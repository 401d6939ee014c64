#include "common/messages/forms.h"
#include "common/messages/message_codec.h"

namespace rcuda::wire {

Status read_form(MessageReader& in, MessageType type) {
  uint64_t form = 0;
  in.number("form", form);
  if (form == form_of(type)) return {};
  return Status(Code::kProtocol,
                "client and server run different builds of rcuda with different messages for "
                "tools: install the same build on both");
}

}  // namespace rcuda::wire
