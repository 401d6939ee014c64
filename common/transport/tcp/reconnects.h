// Reconnects: the part of a TCP Link that lets it survive the loss of its connections. All sockets
// of the Link share one object. The object gets the next connection of a socket within a time
// limit, sends and receives acknowledgements, and reports a loss and its end once for all sockets.
//
// One side makes the next connection, the other waits for it (Reconnecting in link.h).
// Acknowledgements travel with the puts of the Link (take_due()). Urgent acknowledgements use a
// socket of their own, so that no other bytes delay them. That socket retains no bytes: each
// message has the number of bytes that one stream has received so far, and after a loss each side
// sends the numbers of all streams again.
//
// Threads: any; a thread of this object receives acknowledgements. Blocking: connect(), until the
// limit; destructor and stop(), until that thread has ended. Errors: connect() returns why there is
// no next connection.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/transport/link.h"
#include "common/transport/tcp/resumable_socket.h"
#include "common/transport/tcp/tcp_messages.h"

namespace rcuda::transport {

class Reconnects {
 public:
  using Clock = std::chrono::steady_clock;

  // The indexes of the control socket and of the socket for acknowledgements. The sockets for
  // transfers keep the indexes with which they were made, which are lower.
  static constexpr uint32_t kControl = 30;
  static constexpr uint32_t kAcknowledgements = 29;
  static constexpr uint32_t kFarewell = ~0u;  // in place of an index, in an acknowledgement

  // A peer that ends the session closes its sockets at about the time of its farewell, which
  // arrives on one of them. So a lost socket waits this long for the farewell before it reconnects.
  static constexpr auto kFarewellTime = std::chrono::milliseconds(10);

  // The reason of a loss that this side notices only when the peer connects again.
  static constexpr char kReplaced[] = "the peer has connected again";

  // `prepare` sets the options of each further connection.
  using Prepare = std::function<void(uint32_t index, int socket)>;
  // `retained_bytes`: of each stream (LinkOptions), equal on both sides.
  Reconnects(Reconnecting how, Prepare prepare, size_t retained_bytes = kRetainedBytes);
  ~Reconnects() { stop(); }
  Reconnects(const Reconnects&) = delete;
  Reconnects& operator=(const Reconnects&) = delete;

  // Turns a socket of the session into a stream that survives the loss of its connection. Call it
  // before start(), in the same order on both sides. Destroy the streams after stop().
  Result<Socket> protect(Socket connection, uint32_t index);
  // Sets the first socket for acknowledgements.
  void keep(Socket acknowledgements) { socket_ = std::move(acknowledgements); }
  Status start();
  // Announces to the peer that this side ends, so the peer does not wait for a next connection
  // after a loss.
  void say_farewell();
  // Ends the connection for acknowledgements, because the caller considers it lost.
  void lose();
  // Stops waiting for connections, and stops acknowledgements.
  void end();
  // Calls end(), and returns when no thread of this object runs.
  void stop();
  // Calls ResumableSocket::own() of all streams.
  void own(const void* begin, size_t bytes);
  // Calls Socket::close_in_child() of the socket for acknowledgements.
  void close_in_child() const noexcept;

  // The functions below are for ResumableSocket and this class.

  // Gets the next connection for the socket `index`. kNotFound: the session has ended; kTimeout:
  // the limit has passed; kUnavailable: `is_over` has returned true, or end() was called.
  Result<Socket> connect(uint32_t index, Clock::time_point limit,
                         const std::function<bool()>& is_over);
  ResumableSocket* find(uint32_t index) const;  // null: no stream has this index
  std::chrono::milliseconds limit() const { return how_.limit; }
  // Reports to the peer how many bytes the stream `index` has received.
  void acknowledge(uint32_t index, uint64_t received);
  // A stream has received bytes that the next put should acknowledge.
  void note_due() { has_due_.store(true, std::memory_order_relaxed); }
  bool has_due() const { return has_due_.load(std::memory_order_relaxed); }
  // Returns the due acknowledgements, which the caller must send.
  std::vector<Acknowledgement> take_due();
  // Takes an acknowledgement of the peer. Returns false if it acknowledges bytes that were not
  // sent, or names an unknown stream.
  bool take(const Acknowledgement& acknowledgement);
  // A socket calls lost() when it has lost its connection, and back() when it has the next
  // connection. A socket that ends after lost() does not call back().
  void lost(const std::string& why);
  void back();

 private:
  void arrive(int index);
  void run();
  Status renew();
  void end_all(const std::string& why);
  void send_locked(const Acknowledgement& acknowledgement) RCUDA_REQUIRES(mutex_);

  const Reconnecting how_;
  const Prepare prepare_;
  const size_t retained_bytes_;
  std::vector<ResumableSocket*> sockets_;  // fixed by start()
  std::atomic<bool> stopped_{false};
  std::atomic<bool> has_due_{false};

  // The socket for acknowledgements. Replaced by the thread, with the mutex held.
  Mutex mutex_;
  Socket socket_;
  bool is_lost_ RCUDA_GUARDED_BY(mutex_) = false;
  std::vector<std::byte> unsent_ RCUDA_GUARDED_BY(mutex_);
  std::thread thread_;

  Mutex report_mutex_;
  int lost_sockets_ RCUDA_GUARDED_BY(report_mutex_) = 0;
  bool is_new_loss_ RCUDA_GUARDED_BY(report_mutex_) = false;
  Clock::time_point lost_at_ RCUDA_GUARDED_BY(report_mutex_){};
  Clock::time_point back_at_ RCUDA_GUARDED_BY(report_mutex_){};
};

}  // namespace rcuda::transport
