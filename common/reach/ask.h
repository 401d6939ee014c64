// Asks a server something that needs no session: its state, its GPUs, a lease.
//
// Threads: any. Blocking: until the server has answered, five seconds at most. Errors name the
// server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/messages/message_io.h"

namespace rcuda::wire {

// Connects by TCP, identifies this user, sends a message, and returns the body of the answer, which
// must be of the type `wanted`. A refusal has the server's reason; it is kUnavailable if another
// time may do, else kDenied. kProtocol: the server is of another build. kTimeout: the question was
// sent, and no answer came.
Result<std::vector<std::byte>> ask(const std::string& host, uint16_t port, MessageType question,
                                   const std::vector<std::byte>& body, MessageType wanted);

}  // namespace rcuda::wire
