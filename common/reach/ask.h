// Requests to a server that need no session: queries of its state or its GPUs, and requests for
// leases, for example.
//
// Threads: any. Blocking: until the server has answered, five seconds at most; name resolution and
// MUNGE may block for longer. Errors name the server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/messages/message_io.h"

namespace rcuda::wire {

// Connects by TCP, identifies this user, sends a message, and returns the body of the answer, which
// must be of the type `wanted`. The error of a refusal has the server's reason; it is kUnavailable
// if a later attempt may succeed, else kDenied. kProtocol: the server runs another build. kTimeout:
// the request was sent, and no answer came.
Result<std::vector<std::byte>> ask(const std::string& host, uint16_t port, MessageType question,
                                   const std::vector<std::byte>& body, MessageType wanted);

}  // namespace rcuda::wire
