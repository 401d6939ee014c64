#include "common/reach/session_link.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>

#include "common/base/unique_fd.h"
#include "common/reach/socket_keys.h"

namespace rcuda::wire {
namespace {

// Makes the Link over the fallback.
Result<std::unique_ptr<transport::Link>> fall_back(const transport::Medium& medium,
                                                   transport::Bootstrap bootstrap,
                                                   const transport::LinkOptions& options) {
  RCUDA_ASSIGN_OR_RETURN(Socket control, bootstrap.server ? bootstrap.accept_stream(kFallbackSocket)
                                                          : bootstrap.open_stream(kFallbackSocket));
  bootstrap.control = std::move(control);
  return transport::make_link(medium, std::move(bootstrap), options);
}

}  // namespace

Result<SessionLink> make_session_link(const SessionMedia& media, transport::Bootstrap bootstrap,
                                      const transport::LinkOptions& options) {
  if (!media.fallback) {
    RCUDA_ASSIGN_OR_RETURN(auto link,
                           transport::make_link(*media.medium, std::move(bootstrap), options));
    return SessionLink{std::move(link), {}};
  }
  const UniqueFd first(::fcntl(bootstrap.control.fd(), F_DUPFD_CLOEXEC, 0));
  if (!first) {
    return Status::from_errno(errno,
                              "duplicating the descriptor of the session's first connection");
  }
  transport::Bootstrap second;
  second.server = bootstrap.server;
  second.timeout = bootstrap.timeout;
  second.open_stream = bootstrap.open_stream;
  second.accept_stream = bootstrap.accept_stream;
  second.reconnecting = bootstrap.reconnecting;

  bootstrap.timeout /= kTryingPart;
  auto link = transport::make_link(*media.medium, std::move(bootstrap), options);
  if (link) return SessionLink{std::move(link).value(), {}};
  Status refused = link.status();
  link = fall_back(*media.fallback, std::move(second), options);
  if (link) return SessionLink{std::move(link).value(), std::move(refused)};
  return Status(link.status().code(), link.status().context() + "; the first attempt, over " +
                                          media.medium->name() + ", failed: " + refused.context());
}

}  // namespace rcuda::wire
