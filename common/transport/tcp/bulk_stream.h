// BulkStream: one of the sockets that carry the transfers of a TCP Link (tcp_bulk.h).
//
// Data moves directly between memory and socket, without a buffer.
//
// A stream has one receiving thread and, once it is needed, one sending thread. The requesting or
// answering thread sends small pieces and all requests for bytes at once, because waking a thread
// takes longer than sending them. The sending thread sends large pieces, pieces of writes while
// many transfers are in progress, and bytes for which the socket was full. Only the sending thread
// waits for a full socket, so the two directions cannot block each other. While the sending thread
// wakes up, the answering thread, or a requesting thread that has no other work
// (Company::kAwaited), sends a piece until the socket is full.
//
// In each direction, a stream carries messages: a BulkHeader, then `bytes` of payload (kWrite,
// kWriteInOrder and kData only):
//
//   kWrite         store the payload in the receiver's region. Answered by kDone, unless it carries
//                  an immediate
//   kWriteInOrder  the same for a write in order. Not answered; overtakes other requests
//   kRead          send bytes of the receiver's region. Answered by kData and then kDone
//   kData          the bytes that a kRead requested
//   kDone          the piece is complete; `status` is its outcome
//
// A piece has at most kMaxPieceBytes, and a side has at most kMaxInFlight unanswered pieces on a
// stream; a peer that exceeds one of these limits breaks the Link. Any thread may call submit(),
// which does not block. Callbacks run on the stream's threads, or inside of submit(). If a sending
// thread cannot be started when it is needed, the stream fails, and the Link with it. States:
// bulk_state.h.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/socket.h"
#include "common/transport/tcp/bulk_state.h"
#include "common/transport/tcp/exposed_regions.h"
#include "common/transport/tcp/lent_memory.h"
#include "common/transport/tcp/reconnects.h"
#include "common/transport/tcp/socket_order.h"
#include "common/transport/tcp/tcp_messages.h"
#include "common/transport/transfer.h"

namespace rcuda::transport {

class BulkStream {
 public:
  static constexpr uint64_t kMaxPieceBytes = 4u << 20;
  static constexpr size_t kMaxInFlight = 32;
  // Up to this size, the requesting or answering thread sends by itself. The kernel takes 64 KB in
  // about 10 us, which is less than the time to wake the sending thread.
  static constexpr uint64_t kDirectBytes = 64u << 10;

  // A part of a transfer, on the requesting side.
  struct Piece {
    bool to_peer = false;
    uint64_t region = 0;
    uint64_t offset = 0;
    std::byte* local = nullptr;
    uint64_t bytes = 0;
    uint32_t immediate = 0;
    bool in_order = false;
    uint32_t after_puts = 0;
    std::shared_ptr<PendingTransfer> transfer;
    bool is_answered() const { return !in_order && immediate == 0; }
  };

  // Reports why the stream ended. `ours`: this side lacked a resource; the peer did nothing wrong.
  using OnError = std::function<void(const std::string& why, bool ours)>;

  // Parts of the Link that its streams share. They outlive the streams.
  struct Shared {
    Reconnects* reconnects;  // null: the sockets do not outlive their connections
    ExposedRegions& regions;
    LentMemory& lent;
    SocketOrder& order;
    std::chrono::nanoseconds receive_spin;  // LinkOptions::receive_spin
  };
  // `index`: the number of the socket in its session, which Reconnects uses.
  BulkStream(Socket socket, uint32_t index, const Shared& shared, ImmediateArrived on_immediate,
             OnError on_error);

  Status start();
  // Which thread sends the piece, if no other pieces are being sent.
  //   kThread: the sending thread.
  //   kCallerIfSmall: the caller if the piece is small, else the sending thread.
  //   kCaller: as kCallerIfSmall, but while the sending thread wakes up, the caller also sends a
  //       piece of up to 1 MiB.
  //   kCallerAlone: the caller, and the sending thread only when the socket is full.
  enum class Sender { kThread, kCallerIfSmall, kCaller, kCallerAlone };
  void submit(Piece piece, Sender sender);
  size_t queued_bytes() const { return queued_bytes_.load(std::memory_order_relaxed); }
  // Ends the threads. Pending pieces complete with `why`.
  void stop(const Status& why);
  // Returns when the threads have ended. Must be called before the destructor.
  void join();
  void abandon() noexcept { socket_.close_in_child(); }
  // If the socket reconnects, ends its current connection (Socket::lose()).
  void lose(const std::string& why) { (void)socket_.lose(why); }
  void limit_unacknowledged(std::chrono::milliseconds limit);

 private:
  // A pending answer to the peer: data that the peer reads, or the outcome of its write.
  struct Answer {
    BulkHeader asked;
    Code code = Code::kOk;
  };

  // The message being sent: a header, its payload, and after the payload of a kData the kDone.
  struct Message {
    BulkHeader header;
    std::byte* payload = nullptr;
    uint64_t payload_bytes = 0;
    // The region with the payload; null: the payload is the caller's memory.
    std::shared_ptr<ExposedRegions::Entry> region;
    // The payload is retained by its address only, until the peer has it (KeptPiece).
    bool is_kept = false;
    std::shared_ptr<ExposedRegions::Entry> kept;
    bool has_done = false;
    BulkHeader done;
    uint64_t piece = 0;  // the id of this side's piece; 0: an answer to the peer
    uint64_t sent = 0;   // bytes of header, payload and kDone together
    uint64_t bytes() const { return sizeof header + payload_bytes + (has_done ? sizeof done : 0); }
  };

  struct InFlight {
    Piece piece;
    PieceState state;
    Status outcome;
    uint64_t end = 0;  // after kSent: where its message ends in the stream
  };
  struct Failure {  // the arguments of OnError
    std::string why;
    bool ours = false;
  };

  static constexpr uint64_t kAnyBytes = ~uint64_t{0};

  void receive();
  void send();
  bool answer_is_next() const RCUDA_REQUIRES(mutex_) {
    return !answers_.empty() && (answer_next_ || !can_request());
  }
  bool can_request() const RCUDA_REQUIRES(mutex_) {
    return !in_order_.empty() || (!requests_.empty() && in_flight_.size() < kMaxInFlight);
  }
  const Piece& next_request() const RCUDA_REQUIRES(mutex_) {
    return (in_order_.empty() ? requests_ : in_order_).front();
  }
  bool next_message(uint64_t most) RCUDA_REQUIRES(mutex_);
  Message answer_message(const Answer& answer);
  // Whether a call may wait for a full socket.
  enum class Blocking { kNo, kYes };
  bool push(Blocking blocking, std::string* why);
  void keep_source(const Piece& piece, Message* message);
  void drive(MutexLock& lock, uint64_t most, Blocking blocking) RCUDA_REQUIRES(mutex_, lock);
  enum class Meanwhile { kNothing, kLargeAnswer, kLargeRequest, kAll };
  bool next_is(Meanwhile meanwhile) const RCUDA_REQUIRES(mutex_);
  void drive_briefly(MutexLock& lock, Meanwhile meanwhile) RCUDA_REQUIRES(mutex_, lock);
  bool advance(MutexLock& lock, uint64_t id, PieceEvent event, const Status& outcome = {})
      RCUDA_REQUIRES(mutex_, lock);
  void leave(MutexLock& lock) RCUDA_REQUIRES(mutex_, lock);
  std::string receive_one();
  std::string take_write(const BulkHeader& header);
  std::string take_data(const BulkHeader& header);
  std::string take_done(const BulkHeader& header);
  std::string queue_answer(const BulkHeader& asked, Code code);
  std::string receive_bytes(std::byte* data, size_t bytes);
  bool has_work() const RCUDA_REQUIRES(mutex_) {
    return !sending_ && (message_ || !answers_.empty() || can_request());
  }
  bool runs() const RCUDA_REQUIRES(mutex_) { return state_.get() == StreamState::kRunning; }
  void fail_to_send_locked(Failure why) RCUDA_REQUIRES(mutex_);
  void start_sender_locked() RCUDA_REQUIRES(mutex_);
  void call_sender_locked() RCUDA_REQUIRES(mutex_);

  const Socket socket_;
  ResumableSocket* const resumable_;  // the layer of socket_; null: socket_ has no layer
  ExposedRegions& regions_;
  LentMemory& lent_;
  SocketOrder& order_;
  const std::chrono::nanoseconds receive_spin_;
  const ImmediateArrived on_immediate_;
  const OnError on_error_;
  std::thread receiver_;
  std::atomic<size_t> queued_bytes_{0};
  std::vector<std::byte> scratch_;  // receiving thread only: takes dropped payload

  std::atomic<bool> called_{false};  // wakes a sending thread that spins

  Mutex mutex_;
  CondVar to_send_;
  std::thread sender_;
  bool sending_ RCUDA_GUARDED_BY(mutex_) = false;  // a thread sends, or waits for a full socket
  std::optional<Message> message_;  // being sent; used only by the thread that set sending_
  uint64_t sent_ = 0;               // bytes of the stream so far; used like message_
  bool answer_next_ RCUDA_GUARDED_BY(mutex_) = true;  // answers and requests take turns
  std::deque<Piece> requests_ RCUDA_GUARDED_BY(mutex_);
  // Writes in order. They are sent first, because the peer's answers may wait for their bytes.
  std::deque<Piece> in_order_ RCUDA_GUARDED_BY(mutex_);
  std::deque<Answer> answers_ RCUDA_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, InFlight> in_flight_ RCUDA_GUARDED_BY(mutex_);
  uint64_t next_piece_ RCUDA_GUARDED_BY(mutex_) = 1;
  int running_ RCUDA_GUARDED_BY(mutex_) = 0;  // threads that may touch the memory of pieces
  StateWord<kStreamTransitions> state_ RCUDA_GUARDED_BY(mutex_);
  const std::string name_;                       // for the log
  Failure failure_ RCUDA_GUARDED_BY(mutex_);     // once kFailed
  Status why_stopped_ RCUDA_GUARDED_BY(mutex_);  // once kStopped
};

}  // namespace rcuda::transport
