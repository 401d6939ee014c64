// Pairs of connected Links for tests: both ends in this process, or the peer in another process.
//
// The bootstrap is that of a session: there is a connected control socket, and both sides make
// their Link at the same time. Over TCP and verbs, the addresses are 127.0.0.1 unless
// RCUDA_TEST_SERVER and RCUDA_TEST_CLIENT name others (the RDMA rig sets them to its two devices).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/transport/media.h"

namespace rcuda::test {

using transport::Medium;

// Looks the medium up in the table. Aborts if the table has no medium of that name.
const Medium& medium_named(std::string_view name);

struct LinkPair {
  std::unique_ptr<transport::Link> client;
  std::unique_ptr<transport::Link> server;
  // Cuts the control connection, as a broken network or a killed peer does. With
  // RCUDA_TEST_LOSSES (lost_connections.h), ends the random losses instead.
  std::function<void()> cut;
};

// The result of each side: both sides have a Link, or neither has.
struct LinkEnds {
  Result<std::unique_ptr<transport::Link>> client;
  Result<std::unique_ptr<transport::Link>> server;
  std::function<void()> cut;
};
Result<LinkEnds> make_link_ends(const Medium& medium, const transport::LinkOptions& client = {},
                                const transport::LinkOptions& server = {});
Result<LinkPair> make_link_pair(const Medium& medium, const transport::LinkOptions& client = {},
                                const transport::LinkOptions& server = {});

// A named function that a peer in another process runs on its end of the Link, the server's end.
// The process executes this program again and inherits only its sockets, because RDMA devices do
// not survive a fork. Roles are static objects of the test; main() calls run_peer_if_asked() first.
class PeerRole {
 public:
  PeerRole(const char* name, void (*body)(transport::Link&));
};
// Returns false in an ordinary start. In a peer process, runs its role and does not return.
bool run_peer_if_asked();

// A peer in another process. The destructor kills and reaps it.
class PeerProcess {
 public:
  PeerProcess(PeerProcess&& other) noexcept;
  PeerProcess& operator=(PeerProcess&&) = delete;
  ~PeerProcess();

  static Result<PeerProcess> start(const Medium& medium, const transport::LinkOptions& own,
                                   const transport::LinkOptions& peers, const char* role);
  static Result<PeerProcess> start(const Medium& medium, const transport::LinkOptions& options,
                                   const char* role) {
    return start(medium, options, options, role);
  }

  transport::Link& link() { return *link_; }
  std::unique_ptr<transport::Link> take_link() { return std::move(link_); }
  pid_t pid() const { return pid_; }
  void kill(int signal);
  // The exit status as waitpid reports it.
  int wait();

 private:
  PeerProcess() = default;

  pid_t pid_ = -1;
  std::unique_ptr<transport::Link> link_;
};

// The sockets of a connection, for tests that send raw bytes to a Link: `ours` is a plain socket,
// and a Link is made from `theirs`.
struct RawPair {
  UniqueFd ours;
  UniqueFd theirs;
};
Result<RawPair> make_socket_pair(const Medium& medium);

}  // namespace rcuda::test
