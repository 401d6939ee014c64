#include "client/objects/stream.h"

#include "client/channel/session.h"

namespace rcuda::client {

WorkQueue::WorkQueue(wire::Kind kind, const Identity& identity, wire::ObjectId stream)
    : Object(kind, identity),
      timeline(identity.session
                   ? identity.session->timelines().make(*identity.session, identity.context, stream)
                   : nullptr) {}

Context::~Context() {
  if (session) session->timelines().end_context(id);
}

Stream::~Stream() {
  if (session) session->timelines().end_stream(timeline);
}

}  // namespace rcuda::client
