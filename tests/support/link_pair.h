// Pairs of connected Links for tests: both ends in this process, or the peer in another one.
//
// Bootstraps exactly as a session does: a connected control socket, both sides making their Link at
// the same time. Over TCP and verbs the addresses are 127.0.0.1 unless RCUDA_TEST_SERVER and
// RCUDA_TEST_CLIENT name others (the RDMA rig sets them to its two devices).
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

// Of the table; the test ends where it has none of that name.
const Medium& medium_named(std::string_view name);

struct LinkPair {
  std::unique_ptr<transport::Link> client;
  std::unique_ptr<transport::Link> server;
  // Cuts the control connection without a word, as a broken network or a killed peer does.
  std::function<void()> cut;
};

Result<LinkPair> make_link_pair(const Medium& medium, const transport::LinkOptions& client = {},
                                const transport::LinkOptions& server = {});

// What a peer in another process does with its (server) end of the Link, by name: the process is
// this program started anew, so that it inherits nothing (RDMA devices do not survive a fork).
// Roles are static objects of the test; main() calls run_peer_if_asked() first.
class PeerRole {
 public:
  PeerRole(const char* name, void (*body)(transport::Link&));
};
// Returns false in an ordinary start; in a peer's, runs its role and does not return.
bool run_peer_if_asked();

// A peer in a process of its own. Killed and reaped by the destructor.
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

// One end of a connection to be, for tests that speak to a Link with raw bytes: `ours` is a plain
// socket, `theirs` what a Link is made from.
struct RawPair {
  UniqueFd ours;
  UniqueFd theirs;
};
Result<RawPair> make_socket_pair(const Medium& medium);

}  // namespace rcuda::test
