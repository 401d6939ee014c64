// The destination of a command.
#pragma once

#include <cstdint>

#include "common/wire/protocol.h"

namespace rcuda::client {

class Session;
class Timeline;
struct Stream;

// The worker that a command goes to, the context it runs in, and its queue.
struct Route {
  Session* session = nullptr;
  wire::ObjectId context = 0;
  uint32_t device = 0;  // the client's ordinal of the context's device
  // Of the stream that resolve() found last. Null for commands that go to no stream, and for the
  // legacy default stream of a context that is not current.
  Timeline* timeline = nullptr;
  Stream* stream = nullptr;  // null for the legacy default stream
};

// The id of the route's stream; 0 for the legacy default stream or if there is no stream.
wire::ObjectId stream_id(const Route& route);

}  // namespace rcuda::client
