// ServiceManager: reports the state of the server and signs of life (WATCHDOG_USEC) to systemd, by
// sd_notify's protocol: datagrams to the socket of NOTIFY_SOCKET.
//
// NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID are removed from the environment, so workers and
// doors do not have them. Without NOTIFY_SOCKET nothing is sent, and without WATCHDOG_USEC no signs
// of life.
//
// Threads: the daemon's only thread. The constructor changes the environment, so it runs before
// other threads start. Blocking: nothing. While the socket has no room, messages are dropped,
// except READY=1, which is sent again later: without READY=1, systemd would regard the server as
// starting or reloading. Errors: none.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>

#include "common/base/unique_fd.h"
#include "server/daemon/carried/carried_state.h"

namespace rcuda::server {

class ServiceManager {
 public:
  using Clock = std::chrono::steady_clock;

  ServiceManager();

  // For a successor (successor.h).
  CarriedServiceManager carry() const {
    return {socket_.get(), std::chrono::nanoseconds(pause_).count()};
  }
  void restore(const CarriedServiceManager& carried);

  // Clients are served from now on. `status`: a sentence for systemctl status.
  void ready(const std::string& status) {
    is_ready_ = true;
    send_ready("READY=1\nSTATUS=" + status);
  }
  // Call these before and after a reload: systemd shows the state "reloading" in between. They send
  // nothing before ready().
  void reloading() const;
  void reloaded() {
    if (is_ready_) send_ready("READY=1");
  }
  void stopping(const std::string& status) const { (void)send("STOPPING=1\nSTATUS=" + status); }

  // Sends the messages that are due: a sign of life, and READY=1 again. Call it in each round of
  // the loop.
  void beat(Clock::time_point now);
  // When beat() must be called next.
  Clock::time_point next_beat() const { return std::min(next_beat_, send_again_); }

 private:
  static constexpr auto kAgain = std::chrono::milliseconds(100);

  bool send(const std::string& text) const;
  void send_ready(const std::string& text) {
    send_again_ = send(text) ? Clock::time_point::max() : Clock::now() + kAgain;
  }

  bool is_ready_ = false;
  Clock::time_point send_again_ = Clock::time_point::max();  // when to send READY=1 again
  UniqueFd socket_;                                          // invalid: systemd wants no messages
  Clock::duration pause_{};                                  // between two signs of life
  Clock::time_point next_beat_ = Clock::time_point::max();
};

}  // namespace rcuda::server
