// The Link of a session, which both ends make after the Welcome: over one medium, or over a second
// one where no Link comes about over the first.
//
// The second attempt takes another socket (kFallbackSocket): the client opens it, the worker
// accepts it. Each side keeps the first connection open until it has a Link over the second. So the
// end of the first means that the peer has gone, and not that it tries the other medium. A medium
// that is tried first must tell its peer over the connection if it gives up (verbs: a refusal);
// otherwise the peer learns it when its time is over.
//
// Threads: any. Blocking: until the Link is made, or the time of each attempt has passed.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "common/transport/media.h"

namespace rcuda::wire {

// An attempt that has a fallback gets this part of the whole time.
inline constexpr int kTryingPart = 4;

struct SessionMedia {
  const transport::Medium* medium = nullptr;
  const transport::Medium* fallback = nullptr;  // null: none
};

struct SessionLink {
  std::unique_ptr<transport::Link> link;
  Status refused;  // why there is none over `medium`, if it is one over `fallback`
};

// `bootstrap` is for the first medium, with the time for the whole of one attempt; its function for
// further sockets serves both media. Errors: those of transport::make_link(). If both attempts have
// failed, the error is that of the second and tells the first as well.
Result<SessionLink> make_session_link(const SessionMedia& media, transport::Bootstrap bootstrap,
                                      const transport::LinkOptions& options);

}  // namespace rcuda::wire
