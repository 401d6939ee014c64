// Makes a TCP Link: a greeting on the control socket, and the sockets for transfers.
#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include <sys/socket.h>

#include "common/base/socket_io.h"
#include "common/base/units.h"
#include "common/base/usable_processors.h"
#include "common/transport/greeting.h"
#include "common/transport/tcp/medium.h"
#include "common/transport/tcp/reconnects.h"
#include "common/transport/tcp/tcp_link.h"
#include "common/transport/tcp/tcp_messages.h"
#include "common/transport/tcp/tcp_sockets.h"

namespace rcuda::transport {
namespace {

using Clock = std::chrono::steady_clock;

// The number of sockets for transfers, if the options do not set it. On an H200 with 16 processors,
// 8 sockets carry 64 MB 1.2 to 1.5 times as fast as 4, and 1 MB equally fast. Over TLS, a socket
// encrypts with one processor, and 12 sockets carry 64 MB 1.7 to 1.9 times as fast as 4
// (docs/performance.md, Encryption). The server's processors decide. A client with few processors,
// where the threads of the sockets displace each other, limits the number.
size_t usual_streams(bool is_server, bool encrypted) {
  constexpr size_t kLeast = 4, kPlain = 8, kEncrypted = 12;
  constexpr size_t kManyProcessors = 16, kFewProcessors = 8;
  const size_t processors = usable_processors();
  if (!is_server) return processors < kFewProcessors ? kLeast : kMaxBulkStreams;
  const size_t most = encrypted ? kEncrypted : kPlain;
  return std::clamp(most * processors / kManyProcessors, kLeast, most);
}

// Both sides compute the same number from the two greetings.
size_t streams_of(const Greeting& server, const Greeting& client) {
  const size_t streams =
      server.streams_are_set ? server.streams : std::min(server.streams, client.streams);
  return std::min(streams, kMaxBulkStreams);
}

// Turns the sockets into streams that outlive their connections, and opens the socket for
// acknowledgements.
Result<std::unique_ptr<Reconnects>> protect(Bootstrap* bootstrap, std::vector<Socket>* streams,
                                            std::chrono::milliseconds peer_timeout,
                                            size_t retained_bytes) {
  const auto prepare = [peer_timeout](uint32_t index, int socket) {
    tune(socket, peer_timeout);
    if (index == Reconnects::kControl)
      set_receive_timeout(socket, silence_checks(peer_timeout, true));
  };
  auto reconnects =
      std::make_unique<Reconnects>(std::move(bootstrap->reconnecting), prepare, retained_bytes);
  const auto& further = bootstrap->server ? bootstrap->accept_stream : bootstrap->open_stream;
  RCUDA_ASSIGN_OR_RETURN(Socket acknowledgements, further(int{Reconnects::kAcknowledgements}));
  prepare(Reconnects::kAcknowledgements, acknowledgements.fd());
  prepare(Reconnects::kControl, bootstrap->control.fd());
  RCUDA_ASSIGN_OR_RETURN(bootstrap->control,
                         reconnects->protect(std::move(bootstrap->control), Reconnects::kControl));
  for (uint32_t index = 0; index < streams->size(); ++index) {
    Socket& stream = (*streams)[index];
    RCUDA_ASSIGN_OR_RETURN(stream, reconnects->protect(std::move(stream), index));
  }
  reconnects->keep(std::move(acknowledgements));
  return reconnects;
}

}  // namespace

std::chrono::nanoseconds default_receive_spin() {
  constexpr unsigned kCores = 8;
  return std::chrono::microseconds(usable_processors() < kCores ? 0 : 50);
}

Result<std::unique_ptr<Link>> tcp::make_link(Bootstrap bootstrap, const LinkOptions& options) {
  const Deadline deadline = Clock::now() + bootstrap.timeout;
  RCUDA_RETURN_IF_ERROR(check_window_bytes(options.window_bytes, "this side's"));
  const Socket& control = bootstrap.control;
  const Greeting own = make_greeting(kTcpMagic, options, kMaxBulkStreams,
                                     usual_streams(bootstrap.server, control.encrypted()));
  tune(control.fd(), options.peer_timeout);
  RCUDA_RETURN_IF_ERROR(send_all(control, bytes_of(own), deadline));
  Greeting peer;
  RCUDA_RETURN_IF_ERROR(recv_all(control, writable_bytes_of(peer), deadline));
  RCUDA_RETURN_IF_ERROR(check_greeting(peer, kTcpMagic, "TCP"));

  TcpLink::Setup setup;
  const size_t count = bootstrap.server ? streams_of(own, peer) : streams_of(peer, own);
  if (!(bootstrap.server ? bootstrap.accept_stream : bootstrap.open_stream)) {
    return Status{Code::kInvalidArgument,
                  "internal error: no function makes the bulk sockets of a connection over tcp; "
                  "please report it"};
  }
  RCUDA_ASSIGN_OR_RETURN(std::vector<Socket> streams, make_streams(bootstrap, count, deadline));
  for (const Socket& stream : streams) tune(stream.fd(), options.peer_timeout);
  if (bootstrap.reconnecting.limit.count() != 0) {
    const Greeting& server = bootstrap.server ? own : peer;
    const size_t retained = std::max<size_t>(server.retained_blocks, 1) * kRetainedBlock;
    RCUDA_ASSIGN_OR_RETURN(setup.reconnects,
                           protect(&bootstrap, &streams, options.peer_timeout, retained));
  } else {
    set_receive_timeout(bootstrap.control.fd(), silence_checks(options.peer_timeout, false));
  }
  setup.window = Mapping::anonymous(options.window_bytes);
  if (!setup.window) {
    return Status::from_errno(errno,
                              "allocating a window of " + exact_bytes_text(options.window_bytes));
  }
  setup.streams = std::move(streams);
  setup.control = std::move(bootstrap.control);
  setup.peer_window_bytes = peer.window_bytes;
  setup.heartbeat = heartbeat_interval(peer.peer_timeout_ms);
  setup.peer_timeout = options.peer_timeout;
  setup.receive_spin = options.receive_spin;
  setup.answers = options.answers;
  setup.remedy_for_silence = options.remedy_for_silence;
  auto link = std::make_unique<TcpLink>(std::move(setup));
  RCUDA_RETURN_IF_ERROR(link->start());
  return std::unique_ptr<Link>(std::move(link));
}

}  // namespace rcuda::transport
