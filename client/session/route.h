// The route of a command: its worker, its context, and the timeline that counts the command.
//
// A route is made with all its fields and never changed. client/route/find_route.h has the
// functions that find the route of a call.
#pragma once

#include <cstdint>

#include "common/wire/protocol.h"

namespace rcuda::client {

class Session;
class Timeline;
struct Stream;

struct Route {
  Session* const session;
  const wire::ObjectId context;
  // The client's ordinal of the context's device. 0 in the routes that a session and mirrored
  // memory make for their own commands.
  const uint32_t device;
  // The timeline of the command's stream. Null for commands that go to no stream.
  Timeline* const timeline = nullptr;
};

// The route of the commands in a stream. Without a timeline, the stream is the legacy default
// stream of a context that is not current.
struct StreamRoute : Route {
  const wire::ObjectId id;  // 0 for the legacy default stream
  Stream* const stream;     // null for the legacy default stream
};

// Returns the id of the route's stream; 0 for the legacy default stream or if there is no stream.
wire::ObjectId stream_id(const Route& route);
// Blocks while the queue of the route's stream is full. Call it before work is sent to the stream.
void pace(const Route& route);

}  // namespace rcuda::client
