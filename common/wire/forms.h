// The forms of the messages by which tools ask a server: Status, GpuReport, and those of leases and
// control. A form is a hash over the files that declare the message and write it (FORMS of
// api/gen/shared_tables.py). Each such message begins with its form, so a message of another build
// is never misread: it has the same form, or its reader names the remedy.
//
// Threads: any. Nothing blocks.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/wire/handshake.h"
#include "common/wire/message_codec.h"

namespace rcuda::wire {

// 0: messages of this type do not begin with a form.
uint64_t form_of(MessageType type);

// Reads the form with which a message of this type begins. kProtocol: the message is of another
// build.
Status read_form(MessageReader& in, MessageType type);

}  // namespace rcuda::wire
