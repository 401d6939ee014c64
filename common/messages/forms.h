// The forms of the messages by which tools ask a server: status, GPU report, and those of leases
// and control. A form is the hash of the message's layout (message.h). Each such message begins
// with its form, so a message of another build is never misread: it has the same form, or its
// reader names the remedy.
//
// Threads: any. Nothing blocks.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/messages/message_io.h"

namespace rcuda::wire {

class MessageReader;

// 0: messages of this type do not begin with a form. A question and its answer have one form, so a
// server that could not be understood does not act.
uint64_t form_of(MessageType type);

// Reads the form with which a message of this type begins. kProtocol: the message is of another
// build.
Status read_form(MessageReader& in, MessageType type);

}  // namespace rcuda::wire
