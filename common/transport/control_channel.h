// ControlChannel uses the control socket of a shared-memory or verbs Link once the Link is up. The
// socket carries announcements of regions (with their descriptors), heartbeats and the farewell.
// The end of the socket shows that the peer is gone.
//
// All steps that can fail are in prepare(). So a side may call prepare(), report to its peer that
// it is ready, and then call begin(), which cannot fail.
//
// One thread sleeps in poll() on the socket and on a pidfd of the peer. (The pidfd matters if the
// peer has forked: after the parent is killed, the child still holds the socket open.) Any thread
// may call send(), which never blocks: bytes that the socket does not accept at once are queued,
// and the channel's thread sends them. Both callbacks run on the channel's thread. No callback
// follows on_end.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/transport/control_message.h"

namespace rcuda::transport {

class ControlChannel {
 public:
  struct Callbacks {
    // Called for announcements and retirements of regions. If has_fd is set but `fd` is empty, this
    // process had no free descriptor for it. If the function returns an error, the channel ends as
    // after a protocol violation.
    std::function<Status(const ControlMessage&, UniqueFd fd)> on_message;
    // Called when the peer sent a farewell (intended), is gone, or broke the protocol.
    std::function<void(bool intended, const std::string& why)> on_end;
  };
  struct Timing {
    std::chrono::milliseconds send_every{0};     // zero: the peer expects no heartbeats
    std::chrono::milliseconds expect_within{0};  // zero: silence is allowed
  };

  // `peer_process`: a pidfd of the peer, or empty.
  ControlChannel(UniqueFd peer_process, Timing timing, Callbacks callbacks);
  ~ControlChannel();  // calls join()
  ControlChannel(const ControlChannel&) = delete;

  // Starts the thread, which sleeps until begin(). Errors: no descriptor, or no thread.
  Status prepare();
  // Takes ownership of the socket. Call it once, after prepare() and before any use of the channel.
  void begin(Socket socket);
  void send(const ControlMessage& message);
  // Sends the message with a duplicate of the descriptor; -1: without a descriptor. If this process
  // has no free descriptor, returns an error and sends nothing.
  Status send(const ControlMessage& message, int fd);
  // Reports to the peer whether this side may be silent from now on (Link::announce_silence()).
  void announce_silence(bool silent);
  // Sends a farewell and makes the thread end. on_end is not called.
  void finish();
  // Calls finish() and returns when no callback can run any more. If the callbacks use the owner of
  // this channel, the owner's destructor calls join() first.
  void join();
  // The session is lost on this side: closes the connection without a farewell. on_end is not
  // called.
  void hang_up();
  // For a forked child: closes its copies of the descriptors (Link::abandon()).
  void abandon() noexcept;

 private:
  struct Outgoing {
    ControlMessage message;
    size_t sent = 0;
    UniqueFd fd;
  };

  void run();
  std::string poll_once(bool& intended);  // returns the reason to end, or an empty string
  std::string receive(bool& intended);
  std::string check_silence(bool& intended);
  bool limits_silence() const { return timing_.expect_within.count() != 0 && !peer_may_be_silent_; }
  ControlMessage heartbeat() const;
  void enqueue(ControlMessage message, UniqueFd fd);
  Status flush_locked() RCUDA_REQUIRES(mutex_);
  void poke();

  Socket socket_;  // set under mutex_ by begin()
  UniqueFd peer_process_;
  UniqueFd poke_;  // eventfd: messages are queued, or the thread must end
  const Timing timing_;
  const Callbacks callbacks_;
  std::thread thread_;

  Mutex mutex_;
  CondVar begins_;
  bool begun_ RCUDA_GUARDED_BY(mutex_) = false;
  std::deque<Outgoing> queue_ RCUDA_GUARDED_BY(mutex_);
  bool finished_ RCUDA_GUARDED_BY(mutex_) = false;

  std::atomic<bool> is_silent_{false};  // announced to the peer

  // Used by the thread only.
  bool peer_may_be_silent_ = false;
  ControlMessage incoming_;
  size_t incoming_bytes_ = 0;
  std::vector<UniqueFd> incoming_fds_;
  std::chrono::steady_clock::time_point last_heard_;
  std::chrono::steady_clock::time_point last_sent_;
};

}  // namespace rcuda::transport
