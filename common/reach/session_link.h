// The Link of a session, which both ends make after the Welcome: over one medium, or over a second
// medium if the first fails.
//
// The second attempt takes another socket (kFallbackSocket): the client opens it, the worker
// accepts it. Each side keeps the first connection open until it has a Link over the second. So the
// end of the first connection means that the peer is gone, not that the peer tries the other
// medium. A medium that fails on one side must report this to the peer over the first connection
// (verbs: a refusal). Otherwise the peer waits until its timeout.
//
// Threads: any. Blocking: until the Link is made, or the time of each attempt has passed.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "common/transport/media.h"

namespace rcuda::wire {

// An attempt that has a fallback gets 1/kTryingPart of the timeout.
inline constexpr int kTryingPart = 4;

struct SessionMedia {
  const transport::Medium* medium = nullptr;
  const transport::Medium* fallback = nullptr;  // null: none
};

struct SessionLink {
  std::unique_ptr<transport::Link> link;
  Status refused;  // if the Link is over `fallback`: why `medium` failed
};

// `bootstrap` is for the first medium. Its timeout limits an attempt without a fallback. Both media
// use its functions for further sockets. Errors: those of transport::make_link(). If both attempts
// have failed, returns the second error, which includes the first.
Result<SessionLink> make_session_link(const SessionMedia& media, transport::Bootstrap bootstrap,
                                      const transport::LinkOptions& options);

}  // namespace rcuda::wire
