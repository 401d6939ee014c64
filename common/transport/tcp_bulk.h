// TcpBulk: the transfers of a TCP Link, over sockets of their own.
//
// Large transfers are cut into pieces that travel on all streams at once, and data goes straight
// from and into its place: no buffer of ours lies between the socket and the memory. Each stream
// has one receiving thread and, once it has something to send, one sending thread. A receiving
// thread never sends, it only queues, so the two directions cannot block each other.
//
// One stream carries, in both directions, a BulkHeader and then `bytes` of payload for kWrite,
// kData:
//
//   kWrite  store the payload in the receiver's region       answered by kDone
//   kRead   send bytes of the receiver's region              answered by kData and then kDone
//   kData   the bytes that a kRead asked for
//   kDone   the piece is over; `status` tells how
//
// A piece has at most kMaxPieceBytes, and a side has at most kMaxInFlight of them unanswered on a
// stream: whoever exceeds that breaks the Link. transfer() may be called from any thread and does
// not block; callbacks run on the streams' threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/base/unique_fd.h"
#include "common/transport/exposed_regions.h"
#include "common/transport/transfer.h"

namespace rcuda::transport {

inline constexpr size_t kMaxBulkStreams = 16;

struct BulkHeader {
  enum Kind : uint32_t { kWrite = 1, kRead = 2, kData = 3, kDone = 4 };
  uint32_t kind = 0;
  uint32_t status = 0;  // kDone: a Code
  uint64_t piece = 0;   // minted by the asking side, per stream
  uint64_t region = 0;  // kWrite, kRead
  uint64_t offset = 0;  // kWrite, kRead
  uint64_t bytes = 0;   // kWrite, kRead, kData
};
static_assert(sizeof(BulkHeader) == 40);

class BulkStream {
 public:
  static constexpr uint64_t kMaxPieceBytes = 4u << 20;
  static constexpr size_t kMaxInFlight = 32;

  // A part of a transfer, on the asking side.
  struct Piece {
    bool to_peer = false;
    uint64_t region = 0;
    uint64_t offset = 0;
    std::byte* local = nullptr;
    uint64_t bytes = 0;
    std::shared_ptr<Transfer> transfer;
  };

  BulkStream(UniqueFd socket, ExposedRegions& regions,
             std::function<void(const std::string&)> on_error);
  ~BulkStream();  // after stop()

  void start();
  void submit(Piece piece);
  size_t queued_bytes() const { return queued_bytes_.load(std::memory_order_relaxed); }
  // Ends the threads; what is pending completes with `why`.
  void stop(const Status& why);
  void abandon() noexcept { ::close(socket_.get()); }

 private:
  // What this side owes the peer: the data of a piece it reads, or the outcome of one it wrote.
  struct Answer {
    BulkHeader asked;
    Code code = Code::kOk;
  };

  struct InFlight {
    Piece piece;
    bool sent = false;  // the sending thread is through with the caller's memory
    bool done = false;  // the peer has told the outcome
    Status outcome;
  };

  void receive();
  void send();
  void piece_sent(std::unique_lock<std::mutex>& lock, uint64_t id);
  void complete(std::unique_lock<std::mutex>& lock, uint64_t id);
  void thread_ended();
  std::string receive_one();
  std::string take_write(const BulkHeader& header);
  std::string take_data(const BulkHeader& header);
  std::string take_done(const BulkHeader& header);
  std::string queue_answer(const BulkHeader& asked, Code code);
  std::string send_piece(uint64_t id, const Piece& piece);
  std::string send_answer(const Answer& answer);
  std::string send_bytes(const BulkHeader& header, const std::byte* data, size_t bytes);
  std::string send_region(const BulkHeader& header, ExposedRegions::Entry& region, uint64_t offset);
  std::string receive_bytes(std::byte* data, size_t bytes);
  void start_sender_locked();

  const UniqueFd socket_;
  ExposedRegions& regions_;
  const std::function<void(const std::string&)> on_error_;
  std::thread receiver_;
  std::atomic<size_t> queued_bytes_{0};
  std::vector<std::byte> scratch_;  // of the receiving thread: payload nobody wants

  std::mutex mutex_;  // guards the members below
  std::condition_variable to_send_;
  std::thread sender_;
  std::deque<Piece> requests_;
  std::deque<Answer> answers_;
  std::unordered_map<uint64_t, InFlight> in_flight_;
  uint64_t next_piece_ = 1;
  int running_ = 0;  // threads
  bool stopped_ = false;
  Status why_stopped_;
};

class TcpBulk {
 public:
  TcpBulk(std::vector<UniqueFd> sockets, ExposedRegions& regions,
          const std::function<void(const std::string&)>& on_error);

  void start();
  void transfer(bool to_peer, RegionId region, uint64_t offset, std::byte* local, size_t bytes,
                TransferDone done);
  void stop(const Status& why);
  void abandon() noexcept;

 private:
  std::vector<std::unique_ptr<BulkStream>> streams_;
  std::atomic<size_t> next_{0};
};

}  // namespace rcuda::transport
