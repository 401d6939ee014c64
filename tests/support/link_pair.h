// Pairs of connected Links for tests: both ends in this process, or the peer in a forked one.
//
// Bootstraps exactly as a session does: a connected control socket, both sides making their Link at
// the same time. Over TCP and verbs the addresses are 127.0.0.1 unless RCUDA_TEST_SERVER and
// RCUDA_TEST_CLIENT name others (the RDMA rig sets them to its two devices).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/transport/link.h"

namespace rcuda::test {

enum class Medium { kShm, kTcp, kVerbs };
const char* to_string(Medium medium);

struct LinkPair {
  std::unique_ptr<transport::Link> client;
  std::unique_ptr<transport::Link> server;
  // Cuts the control connection without a word, as a broken network or a killed peer does.
  std::function<void()> cut;
};

Result<LinkPair> make_link_pair(Medium medium, const transport::LinkOptions& client = {},
                                const transport::LinkOptions& server = {});

// A peer in a child process, which runs `body` on its (server) end and exits. Killed and reaped by
// the destructor. Call while this process has no Links and no threads of its own.
class ForkedPeer {
 public:
  ForkedPeer(ForkedPeer&& other) noexcept;
  ForkedPeer& operator=(ForkedPeer&&) = delete;
  ~ForkedPeer();

  static Result<ForkedPeer> start(Medium medium, const transport::LinkOptions& options,
                                  const std::function<void(transport::Link&)>& body);

  transport::Link& link() { return *link_; }
  std::unique_ptr<transport::Link> take_link() { return std::move(link_); }
  pid_t pid() const { return pid_; }
  void kill(int signal);
  // The exit status as waitpid reports it.
  int wait();

 private:
  ForkedPeer() = default;

  pid_t pid_ = -1;
  std::unique_ptr<transport::Link> link_;
};

// One end of a connection to be, for tests that speak to a Link with raw bytes: `ours` is a plain
// socket, `theirs` what a Link is made from.
struct RawPair {
  UniqueFd ours;
  UniqueFd theirs;
};
Result<RawPair> make_socket_pair(Medium medium);

}  // namespace rcuda::test
