// ServiceManager: tells systemd the state of the server (sd_notify's protocol: datagrams to the
// socket of NOTIFY_SOCKET), and that it lives (WATCHDOG_USEC).
//
// Both variables are removed from the environment, so workers and doors do not have them. Without
// them nothing is sent.
//
// Threads: the daemon's only thread, before it starts others. Blocking: nothing; a message that
// does not fit is dropped. Errors: none. A server whose state is not known is ended by systemd,
// which says so.
#pragma once

#include <chrono>
#include <string>

#include "common/base/unique_fd.h"
#include "server/daemon/carried/carried_state.h"

namespace rcuda::server {

class ServiceManager {
 public:
  using Clock = std::chrono::steady_clock;

  ServiceManager();

  // For another build in this process.
  CarriedServiceManager carry() const {
    return {socket_.get(), std::chrono::nanoseconds(pause_).count()};
  }
  void restore(const CarriedServiceManager& carried);

  // Clients are served from now on. `status`: a sentence for systemctl status.
  void ready(const std::string& status) {
    is_ready_ = true;
    send("READY=1\nSTATUS=" + status);
  }
  // Before and after a reload: systemd shows the state "reloading" in between. Nothing is sent
  // before ready().
  void reloading() const;
  void reloaded() const {
    if (is_ready_) send("READY=1");
  }
  void stopping(const std::string& status) const { send("STOPPING=1\nSTATUS=" + status); }

  // Call it in each round of the loop. Sends a sign of life when one is due.
  void beat(Clock::time_point now);
  // When beat() must be called; never without a watchdog.
  Clock::time_point next_beat() const { return next_beat_; }

 private:
  void send(const std::string& text) const;

  bool is_ready_ = false;
  UniqueFd socket_;  // none: no message is wanted
  Clock::duration pause_{};
  Clock::time_point next_beat_ = Clock::time_point::max();
};

}  // namespace rcuda::server
