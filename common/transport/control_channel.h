// ControlChannel: what the control socket of a shared-memory or verbs Link does once the Link
// stands: it carries the announcements of regions (with their descriptors), the farewell, signs of
// life, and its end tells that the peer is gone.
//
// One thread of its own sleeps in poll() on the socket and on the peer's pidfd. (The pidfd matters
// when the peer has forked: a child holds the socket open after its parent was killed.) send() may
// be called from any thread and never blocks: what the socket does not take at once is queued and
// sent by the thread. The two callbacks run on that thread. After on_end no callback follows.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda::transport {

// Read from the peer: every field is a claim.
struct ControlMessage {
  enum Kind : uint32_t {
    kHeartbeat = 1,
    kAnnounce = 2,
    kRetire = 3,
    kFarewell = 4,
    kRetired = 5,  // verbs: the answer to kRetire
  };
  uint32_t kind = 0;
  uint32_t has_fd = 0;   // kAnnounce: one descriptor travels with this message
  uint64_t region = 0;   // kAnnounce, kRetire, kRetired
  uint64_t bytes = 0;    // kAnnounce
  uint64_t address = 0;  // kAnnounce; shm: offset in the backing; verbs: remote address
  uint64_t key = 0;      // kAnnounce; verbs: rkey
};
static_assert(sizeof(ControlMessage) == 40);

class ControlChannel {
 public:
  struct Callbacks {
    // Announcements and retirements. A descriptor that this process had no room for is empty here,
    // though has_fd is set. An error ends the channel as a protocol violation.
    std::function<Status(const ControlMessage&, UniqueFd fd)> on_message;
    // The peer said farewell (intended) or is gone or broke the protocol.
    std::function<void(bool intended, const std::string& why)> on_end;
  };
  struct Timing {
    std::chrono::milliseconds send_every{0};     // zero: no signs of life wanted by the peer
    std::chrono::milliseconds expect_within{0};  // zero: silence is fine
  };

  // Takes the socket over. `peer_process` may be empty.
  ControlChannel(UniqueFd socket, UniqueFd peer_process, Timing timing, Callbacks callbacks);
  ~ControlChannel();  // as join()
  ControlChannel(const ControlChannel&) = delete;

  Status start();
  void send(const ControlMessage& message);
  // The same with a descriptor, unless that is -1. It is duplicated; where this process may have no
  // further ones nothing is sent.
  Status send(const ControlMessage& message, int fd);
  // Says farewell and makes the thread end without calling on_end.
  void finish();
  // finish(), and no callback runs any more: of an owner whose callbacks send by way of it.
  void join();
  // The session is lost on this side: the peer gets no farewell, but the end of the connection.
  // on_end is not called any more.
  void hang_up();
  // As Link::abandon.
  void abandon() noexcept;

 private:
  struct Outgoing {
    ControlMessage message;
    size_t sent = 0;
    UniqueFd fd;
  };

  void run();
  std::string poll_once(bool& intended);  // the reason to end, or empty
  std::string receive(bool& intended);
  void enqueue(ControlMessage message, UniqueFd fd);
  Status flush_locked();
  void poke();

  UniqueFd socket_;
  UniqueFd peer_process_;
  UniqueFd poke_;  // eventfd: there is something to send, or the end
  const Timing timing_;
  const Callbacks callbacks_;
  std::thread thread_;

  std::mutex mutex_;  // guards the members below
  std::deque<Outgoing> queue_;
  bool finished_ = false;

  // Of the thread.
  ControlMessage incoming_;
  size_t incoming_bytes_ = 0;
  std::vector<UniqueFd> incoming_fds_;
  std::chrono::steady_clock::time_point last_heard_;
  std::chrono::steady_clock::time_point last_sent_;
};

}  // namespace rcuda::transport
