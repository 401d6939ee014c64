// TcpBulk: the transfers of a TCP Link, over separate sockets (bulk_stream.h).
//
// Large transfers are cut into pieces, which travel on all streams at once.
//
// Any thread may call transfer(), which does not block. Callbacks run on the streams' threads, or
// inside of transfer().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/socket.h"
#include "common/transport/tcp/bulk_stream.h"
#include "common/transport/transfer.h"

namespace rcuda::transport {

inline constexpr size_t kMaxBulkStreams = 16;

class TcpBulk {
 public:
  TcpBulk(std::vector<Socket> streams, const BulkStream::Shared& shared,
          const ImmediateArrived& on_immediate, const BulkStream::OnError& on_error);

  Status start();
  // `after_puts`: the SentOrder count that the transfer waits for at the peer.
  void transfer(const TransferRequest& what, uint32_t after_puts, TransferDone done);
  void stop(const Status& why);
  // Returns when the threads of all streams have ended. Call it before any stream is destroyed: a
  // stream's thread may use other streams.
  void join();
  void abandon() noexcept;
  void lose(const std::string& why);  // calls Socket::lose() of each stream
  void limit_unacknowledged(std::chrono::milliseconds limit);  // of each stream (tcp_sockets.h)

 private:
  BulkStream::Sender sender_of(const TransferRequest& what, const BulkStream::Piece& piece,
                               bool among_many) const;
  bool in_burst();

  const bool has_few_processors_;
  std::vector<std::unique_ptr<BulkStream>> streams_;
  // The time of the last transfer without immediate, and the number of such transfers in the
  // current burst.
  std::atomic<std::chrono::steady_clock::time_point> last_{};
  std::atomic<uint32_t> burst_{0};
};

}  // namespace rcuda::transport
