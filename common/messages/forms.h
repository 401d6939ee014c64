// The forms of the messages with which tools query a server: status, GPU report, leases and
// control. A form is the hash of the message's layout (message.h). Each such message begins with
// its form, so a message of another build is never misread: if its form differs, the reader reports
// the remedy.
//
// Threads: any. Nothing blocks.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/messages/message_io.h"

namespace rcuda::wire {

class MessageReader;

// Returns the form of a type of message; 0 if messages of this type do not begin with a form. A
// request and its answer share one form, so a server acts only if the client can read its answer.
uint64_t form_of(MessageType type);

// Reads the form with which a message of this type begins. kProtocol: the message is of another
// build.
Status read_form(MessageReader& in, MessageType type);

}  // namespace rcuda::wire
