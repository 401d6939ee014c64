// The Link over TCP. The control socket becomes an ordered stream of puts in each direction
// (tcp_messages.h).
//
// TcpSender gathers outgoing puts. For incoming ones, a thread copies small puts out of a buffer
// that one recv() has filled, and receives large puts straight into the window. This thread never
// sends, so the sockets of both sides may be full without a deadlock. Transfers use other sockets
// (tcp_bulk.h).
//
// A dead peer shows as the end of the stream, a stopped peer by its missing heartbeats, and a lost
// host by the kernel's unanswered probes and segments.
#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>

#include "common/base/log.h"
#include "common/base/peer_order.h"
#include "common/base/socket_io.h"
#include "common/base/start_thread.h"
#include "common/transport/gather.h"
#include "common/transport/link_core.h"
#include "common/transport/mapping.h"
#include "common/transport/tcp/adaptive_spin.h"
#include "common/transport/tcp/medium.h"
#include "common/transport/tcp/tcp_bulk.h"
#include "common/transport/tcp/tcp_messages.h"
#include "common/transport/tcp/tcp_sender.h"
#include "common/transport/tcp/tcp_sockets.h"

namespace rcuda::transport {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kHelloMagic = 0x3270637461647563;  // "cudatcp2"
constexpr size_t kBufferBytes = 128u << 10;
// Smaller puts pass through the buffer; larger ones are received in place.
constexpr size_t kBufferedPut = 16u << 10;
// With a peer that may stay silent for ever, its host counts as lost if data stays unacknowledged
// for this long. The kernel of a stopped peer still acknowledges probes of a closed window.
constexpr auto kHostLost = std::chrono::seconds(60);
// How long a closing Link waits until the peer closes too. Otherwise the last bytes sent could be
// discarded with the connection.
constexpr auto kLinger = std::chrono::milliseconds(300);

// A whole message fits into the receiver's buffer.
static_assert(sizeof(PutHeader) + sizeof(RegionPlace) + kMaxRegionPut <= kBufferBytes);

constexpr PutHeader kHeartbeatFrame{0, kHeartbeat};
constexpr PutHeader kFarewellFrame{0, kFarewell};

struct Hello {
  uint64_t magic = kHelloMagic;
  uint64_t window_bytes = 0;
  uint32_t peer_timeout_ms = 0;
  uint32_t streams = 0;
};
static_assert(sizeof(Hello) == 24);

class TcpLink final : public LinkCore {
 public:
  struct Setup {
    Socket control;
    std::vector<Socket> streams;
    Mapping window;
    size_t peer_window_bytes = 0;
    std::chrono::milliseconds heartbeat{0};
    std::chrono::milliseconds peer_timeout{0};
    BulkOptions bulk;
    WindowPart answers;
  };

  explicit TcpLink(Setup setup);
  ~TcpLink() override;
  Status start();

  const MediumTraits& traits() const override { return tcp::kTraits; }
  std::span<std::byte> window() override { return {window_.data(), window_.size()}; }
  size_t peer_window_bytes() const override { return peer_window_bytes_; }
  Status put(uint64_t offset, std::span<const Bytes> pieces, Wake wake) override;
  Status put_region(RegionId region, uint64_t offset, Bytes bytes) override;
  void flush() override { sender_.flush(); }
  Result<Region> expose(void* base, size_t bytes, int backing, uint64_t backing_offset) override;
  Status unexpose(RegionId region) override { return regions_.remove(region); }
  Result<void*> map(RegionId, size_t, void*) override { return static_cast<void*>(nullptr); }
  Status unmap(RegionId) override { return {Code::kNotFound, "tcp maps no regions"}; }
  void write(RegionId region, uint64_t offset, const void* local, size_t bytes,
             TransferDone done) override;
  void read(RegionId region, uint64_t offset, void* local, size_t bytes,
            TransferDone done) override;
  void write_with_immediate(RegionId region, uint64_t offset, const void* local, size_t bytes,
                            uint32_t immediate, Company company, TransferDone done) override;
  void write_in_order(RegionId region, uint64_t offset, const void* local, size_t bytes,
                      TransferDone done) override;
  void close() override;
  void abandon() noexcept override;

 private:
  void on_broken() override;
  void before_sleep() override { sender_.flush(); }
  void transfer(const TransferRequest& what, TransferDone done);
  TransferDone counting(size_t bytes, TransferDone done);
  // A peer that closes in answer to a farewell is not lost.
  void lost(const std::string& why) { fail(closing_ ? End::kIntended : End::kLost, why); }
  void bulk_lost(const std::string& why);

  // The receiving thread. Functions return the reason why the stream ended, or an empty string.
  void receive();
  std::string fill();
  std::string take_puts();
  std::string take_large_put(const PutHeader& header);
  std::string take_region_put(const PutHeader& header, bool* whole);
  std::string take_end_of_write(const PutHeader& header, bool* whole);
  std::string receive_some(std::byte* data, size_t bytes, size_t* received);
  std::string check_peer() const;

  const Socket control_;
  const Mapping window_;
  const size_t peer_window_bytes_;
  const std::chrono::milliseconds peer_timeout_;
  AdaptiveSpin receive_spin_;  // of the receiver
  const WindowPart answers_;
  DoorbellState doorbell_state_;
  DoorbellState elsewhere_state_;
  ExposedRegions regions_;
  SocketOrder order_;  // of what this side receives
  // Held while a put into a region, or the end of a write in order, is counted and enters the
  // control stream. A count is visible only after that, so in each socket its message is in front
  // of whatever waits for the count.
  std::mutex sent_mutex_;
  SentOrder sent_order_;                    // guarded by sent_mutex_
  std::atomic<uint32_t> sent_in_order_{0};  // its count; raised with sent_mutex_ held
  int unsent_writes_ = 0;                   // in order; guarded by end_mutex_
  std::condition_variable writes_sent_;
  std::mutex put_mutex_;
  std::mutex end_mutex_;
  std::condition_variable receiver_ended_;
  bool receiver_over_ = false;  // guarded by end_mutex_
  std::atomic<bool> closing_{false};
  // Declared last: their threads use the members above.
  TcpSender sender_;
  TcpBulk bulk_;

  std::thread receiver_;
  std::vector<std::byte> buffer_;
  size_t begin_ = 0;  // start of the bytes in the buffer
  size_t end_ = 0;
  bool farewell_ = false;
  Clock::time_point last_heard_;
};

TcpLink::TcpLink(Setup setup)
    : LinkCore(&doorbell_state_, &elsewhere_state_, false),
      control_(std::move(setup.control)),
      window_(std::move(setup.window)),
      peer_window_bytes_(setup.peer_window_bytes),
      peer_timeout_(setup.peer_timeout),
      receive_spin_(setup.bulk.receive_spin),
      answers_(setup.answers),
      sender_(control_, bytes_of(kHeartbeatFrame), setup.heartbeat, setup.bulk.receive_spin,
              [this](const std::string& why) { lost(why); }),
      bulk_(
          std::move(setup.streams), regions_, order_, setup.bulk,
          [this](uint32_t immediate, uint64_t bytes) { immediate_arrived(immediate, bytes); },
          [this](const std::string& why, bool ours) { ours ? lost(why) : bulk_lost(why); }),
      buffer_(kBufferBytes) {}

// After an error the Link has ended; its maker reports why.
Status TcpLink::start() {
  last_heard_ = Clock::now();
  Status started = sender_.start();
  if (started.ok()) started = bulk_.start();
  if (started.ok()) started = start_thread(&receiver_, [this] { receive(); });
  if (started.ok()) return {};
  {
    std::lock_guard lock(end_mutex_);
    receiver_over_ = true;
  }
  fail(End::kIntended, started.context());
  return started;
}

TcpLink::~TcpLink() {
  close();
  {
    std::unique_lock lock(end_mutex_);
    receiver_ended_.wait_for(lock, kLinger, [this] { return receiver_over_; });
  }
  ::shutdown(control_.fd(), SHUT_RDWR);
  if (receiver_.joinable()) receiver_.join();
  // The thread that broke the Link may still be on its way to on_broken(), which uses both members.
  bulk_.join();
  sender_.join();
}

void TcpLink::close() {
  if (closing_.exchange(true) || broken()) return;
  {
    // What was put behind them counts only with their bytes.
    std::unique_lock lock(end_mutex_);
    writes_sent_.wait_for(lock, kLinger, [this] { return unsent_writes_ == 0 || broken(); });
  }
  sender_.finish(bytes_of(kFarewellFrame), Clock::now() + kLinger);
  ::shutdown(control_.fd(), SHUT_WR);
  fail(End::kIntended, "the session was closed");
}

void TcpLink::on_broken() {
  const Status why = status();
  order_.stop_waiting();
  bulk_.stop(why);
  sender_.stop();
  if (!closing_) ::shutdown(control_.fd(), SHUT_RDWR);
}

// If the peer ends on purpose, its bulk connections may close before its farewell has been read.
void TcpLink::bulk_lost(const std::string& why) {
  std::unique_lock lock(end_mutex_);
  receiver_ended_.wait_for(lock, kLinger, [this] { return receiver_over_ || broken(); });
  lock.unlock();
  lost(why);
}

void TcpLink::abandon() noexcept {
  ::close(control_.fd());
  bulk_.abandon();
}

Status TcpLink::put(uint64_t offset, std::span<const Bytes> pieces, Wake wake) {
  const size_t total = total_bytes(pieces);
  RCUDA_RETURN_IF_ERROR(check_put(offset, pieces.size(), total, peer_window_bytes_));
  run_before_put();
  const uint32_t kind = wake == Wake::kNo ? kPut : kPutAndWake;
  before_peer(order_.for_sanitizer());
  const PutHeader header{static_cast<uint32_t>(total), static_cast<uint32_t>(offset) | kind};
  std::array<Bytes, kMaxPutPieces + 1> message;
  message[0] = bytes_of(header);
  std::copy(pieces.begin(), pieces.end(), message.begin() + 1);
  if (!sender_.send(std::span(message).first(pieces.size() + 1), total + sizeof header, wake)) {
    return broken() ? status() : Status{Code::kUnavailable, "the session was closed"};
  }
  std::lock_guard lock(put_mutex_);
  count_put(total);
  return {};
}

Status TcpLink::put_region(RegionId region, uint64_t offset, Bytes bytes) {
  if (broken()) return status();
  if (bytes.empty() || bytes.size() > kMaxRegionPut) {
    return {Code::kInvalidArgument,
            "put of " + std::to_string(bytes.size()) + " bytes into a region"};
  }
  before_peer(order_.for_sanitizer());
  const RegionPlace place{static_cast<uint64_t>(region), offset};
  const PutHeader header{static_cast<uint32_t>(sizeof place + bytes.size()), kRegionPut};
  const std::array<Bytes, 3> message{bytes_of(header), bytes_of(place), bytes};
  {
    std::lock_guard lock(sent_mutex_);
    const uint32_t sent = sent_order_.add_put();
    if (!sender_.keep(message, sizeof header + header.bytes)) {
      return broken() ? status() : Status{Code::kUnavailable, "the session was closed"};
    }
    sent_in_order_.store(sent, std::memory_order_release);
  }
  transfer_bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
  copied_bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
  return {};
}

Result<Region> TcpLink::expose(void* base, size_t bytes, int, uint64_t) {
  if (broken()) return status();
  return regions_.add(base, bytes);
}

void TcpLink::write(RegionId region, uint64_t offset, const void* local, size_t bytes,
                    TransferDone done) {
  write_with_immediate(region, offset, local, bytes, 0, Company::kAlone, std::move(done));
}

void TcpLink::write_with_immediate(RegionId region, uint64_t offset, const void* local,
                                   size_t bytes, uint32_t immediate, Company company,
                                   TransferDone done) {
  auto* const source = static_cast<std::byte*>(const_cast<void*>(local));
  transfer({true, region, offset, source, bytes, immediate, company}, std::move(done));
}

void TcpLink::read(RegionId region, uint64_t offset, void* local, size_t bytes, TransferDone done) {
  transfer({false, region, offset, static_cast<std::byte*>(local), bytes}, std::move(done));
}

TransferDone TcpLink::counting(size_t bytes, TransferDone done) {
  return [this, bytes, done = std::move(done)](const Status& status) {
    if (status.ok()) {
      // The kernel's copy between socket and memory also runs on this CPU.
      transfer_bytes_.fetch_add(bytes, std::memory_order_relaxed);
      copied_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    }
    done(status);
  };
}

void TcpLink::transfer(const TransferRequest& what, TransferDone done) {
  if (what.offset > UINT64_MAX - what.bytes) {
    return done({Code::kInvalidArgument, "offset out of range"});
  }
  run_before_put();
  const uint32_t before = sent_in_order_.load(std::memory_order_acquire);
  if (before != 0) sender_.flush();  // the transfer waits for them
  bulk_.transfer(what, before, counting(what.bytes, std::move(done)));
}

// The pieces enter the streams before the count is visible: in each socket they are in front of
// whatever waits for it.
void TcpLink::write_in_order(RegionId region, uint64_t offset, const void* local, size_t bytes,
                             TransferDone done) {
  if (bytes == 0 || offset > UINT64_MAX - bytes) {
    return done({Code::kInvalidArgument, "write of " + std::to_string(bytes) + " bytes in order"});
  }
  auto* const source = static_cast<std::byte*>(const_cast<void*>(local));
  TransferRequest what{true, region, offset, source, bytes, 0, Company::kAlone, true};
  sender_.flush();  // the write waits for earlier puts into regions
  {
    std::lock_guard lock(end_mutex_);
    ++unsent_writes_;
  }
  const auto sent = [this, done = std::move(done)](const Status& status) {
    done(status);
    std::lock_guard lock(end_mutex_);
    --unsent_writes_;
    writes_sent_.notify_all();
  };
  std::lock_guard lock(sent_mutex_);
  const SentOrder::Write write = sent_order_.add_write(region, offset, offset + bytes);
  what.immediate = write.number;
  bulk_.transfer(what, write.after_puts, counting(bytes, sent));
  const EndOfWrite end{bytes, write.number};
  const PutHeader header{sizeof end, kEndOfWrite};
  const std::array<Bytes, 2> message{bytes_of(header), bytes_of(end)};
  (void)sender_.keep(message, sizeof header + sizeof end);  // a lost Link ends the write as well
  sent_in_order_.store(write.sent, std::memory_order_release);
}

void TcpLink::receive() {
  ::pthread_setname_np(::pthread_self(), "rcuda-tcp-recv");
  std::string why;
  while (why.empty()) {
    why = fill();
    if (why.empty()) why = take_puts();
  }
  if (farewell_) {
    fail(End::kIntended, why);
  } else {
    lost(why);
  }
  std::lock_guard lock(end_mutex_);
  receiver_over_ = true;
  receiver_ended_.notify_all();
}

// One recv(). With a timeout for silence, it returns now and then to check the peer (SO_RCVTIMEO).
std::string TcpLink::receive_some(std::byte* data, size_t bytes, size_t* received) {
  const Clock::time_point begin = Clock::now();
  while (true) {
    const ssize_t count = recv_spinning(control_, data, bytes, 0, receive_spin_.limit());
    if (count > 0) {
      last_heard_ = Clock::now();
      receive_spin_.waited(last_heard_ - begin);
      *received = static_cast<size_t>(count);
      return {};
    }
    if (count == 0) return "the peer closed the connection";
    if (errno == ECONNRESET) return "the peer closed the connection";
    if (errno == ETIMEDOUT) return "the peer's host does not answer";
    if (errno == EINTR) continue;  // this process was stopped: read first what has arrived since
    if (errno != EAGAIN) return std::strerror(errno);
    if (std::string why = check_peer(); !why.empty()) return why;
  }
}

std::string TcpLink::check_peer() const {
  if (peer_timeout_.count() != 0) {
    if (Clock::now() - last_heard_ < peer_timeout_) return {};
    return "the peer has been silent for " + std::to_string(peer_timeout_.count()) + " ms";
  }
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(control_.fd(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  const bool unanswered =
      info.tcpi_unacked != 0 && std::chrono::milliseconds(info.tcpi_last_ack_recv) > kHostLost;
  return unanswered ? "the peer's host does not answer" : "";
}

std::string TcpLink::fill() {
  // Keep whole headers and buffered puts contiguous.
  if (begin_ != 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  size_t received = 0;
  std::string why = receive_some(buffer_.data() + end_, buffer_.size() - end_, &received);
  end_ += received;
  return why;
}

std::string TcpLink::take_puts() {
  std::string why;
  bool wake = false, wake_elsewhere = false;
  const auto ring = [&] {
    if (std::exchange(wake, false)) doorbell_.ring();
    if (std::exchange(wake_elsewhere, false)) elsewhere_.ring();
  };
  while (why.empty() && end_ - begin_ >= sizeof(PutHeader)) {
    PutHeader header;
    std::memcpy(&header, buffer_.data() + begin_, sizeof header);
    const uint32_t kind = header.place % 8;
    const uint64_t offset = header.place - kind;
    if (kind == kFarewell) {
      farewell_ = true;
      why = "the peer ended the session";
      break;
    }
    if (kind == kHeartbeat && header.bytes == 0) {
      begin_ += sizeof header;
      continue;
    }
    if (kind == kRegionPut) {
      bool whole = false;
      why = take_region_put(header, &whole);
      if (!whole) break;
      continue;
    }
    if (kind == kEndOfWrite) {
      ring();  // the write may take long to arrive
      bool whole = false;
      why = take_end_of_write(header, &whole);
      if (!whole) break;
      continue;
    }
    if (kind > kPutAndWake || header.bytes < kWord || header.bytes % kWord != 0 ||
        header.bytes > window_.size() || offset > window_.size() - header.bytes) {
      why = "protocol violation: put outside of the window";
      break;
    }
    after_peer(order_.for_sanitizer());  // transfers whose end the peer has seen
    if (header.bytes > kBufferedPut) {
      ring();  // the rest may take long to arrive
      why = take_large_put(header);
    } else {
      if (end_ - begin_ < sizeof header + header.bytes) break;
      const Bytes payload(buffer_.data() + begin_ + sizeof header, header.bytes);
      begin_put();
      store_pieces(window_.data() + offset, std::span(&payload, 1), payload.size());
      begin_ += sizeof header + header.bytes;
    }
    wake = wake || kind == kPutAndWake;
    wake_elsewhere = wake_elsewhere || (kind == kPutAndWake && !answers_.holds(offset));
  }
  ring();  // once for all puts that arrived together
  return why;
}

// `whole`: false if the rest of the message has not arrived, or breaks the protocol.
std::string TcpLink::take_region_put(const PutHeader& header, bool* whole) {
  RegionPlace place;
  if (header.place != kRegionPut || header.bytes <= sizeof place ||
      header.bytes > sizeof place + kMaxRegionPut) {
    return "protocol violation: put of " + std::to_string(header.bytes) + " bytes into a region";
  }
  if (end_ - begin_ < sizeof header + header.bytes) return {};
  const std::byte* const message = buffer_.data() + begin_ + sizeof header;
  std::memcpy(&place, message, sizeof place);
  const size_t bytes = header.bytes - sizeof place;
  const Result<std::shared_ptr<ExposedRegions::Entry>> entry =
      regions_.find(place.region, place.offset, bytes);
  if (!entry.ok() && entry.status().code() != Code::kNotFound) {
    return "protocol violation: " + entry.status().context();
  }
  after_peer(order_.for_sanitizer());
  begin_put();
  if (entry.ok()) {
    const ExposedRegions::Pin pin(**entry);
    if (pin) std::memcpy((*entry)->base + place.offset, message + sizeof place, bytes);
  }
  order_.count_put();
  begin_ += sizeof header + header.bytes;
  *whole = true;
  return {};
}

// `whole`: as above. While it waits for the write, it reads no heartbeats: whatever comes by the
// sockets of the transfers counts instead.
std::string TcpLink::take_end_of_write(const PutHeader& header, bool* whole) {
  EndOfWrite end;
  if (header.place != kEndOfWrite || header.bytes != sizeof end) {
    return "protocol violation: end of a write of " + std::to_string(header.bytes) + " bytes";
  }
  if (end_ - begin_ < sizeof header + sizeof end) return {};
  std::memcpy(&end, buffer_.data() + begin_ + sizeof header, sizeof end);
  const auto patience = (peer_timeout_.count() != 0 ? peer_timeout_ : kHostLost) / 4;
  uint64_t seen = order_.bytes();
  for (auto until = Clock::now() + patience;
       !order_.wait_for_write(end.number, end.bytes, receive_spin_.limit(), until);
       until = Clock::now() + patience) {
    if (broken()) return "the session was closed";
    const bool was_stopped = Clock::now() > until + patience;  // as after EINTR in receive_some()
    const uint64_t now = order_.bytes();
    if (std::exchange(seen, now) != now || was_stopped) last_heard_ = Clock::now();
    if (std::string why = check_peer(); !why.empty()) return why;
  }
  last_heard_ = Clock::now();
  order_.count_put();
  begin_ += sizeof header + sizeof end;
  *whole = true;
  return {};
}

std::string TcpLink::take_large_put(const PutHeader& header) {
  std::byte* const place = window_.data() + (header.place & ~7u);
  begin_ += sizeof header;
  // The first word is stored whole, then the middle is received in place, then the last word is
  // stored.
  while (end_ - begin_ < kWord) {
    if (std::string why = fill(); !why.empty()) return why;
  }
  begin_put();
  uint64_t word;
  std::memcpy(&word, buffer_.data() + begin_, kWord);
  store_word(place, word, std::memory_order_relaxed);
  begin_ += kWord;
  const size_t last = header.bytes - kWord;
  const size_t buffered = std::min(end_ - begin_, last - kWord);
  std::memcpy(place + kWord, buffer_.data() + begin_, buffered);
  begin_ += buffered;
  for (size_t at = kWord + buffered; at < last;) {
    size_t received = 0;
    std::string why = receive_some(place + at, last - at, &received);
    if (!why.empty()) return why;
    at += received;
  }
  while (end_ - begin_ < kWord) {
    if (std::string why = fill(); !why.empty()) return why;
  }
  std::memcpy(&word, buffer_.data() + begin_, kWord);
  store_word(place + last, word, std::memory_order_release);
  begin_ += kWord;
  return {};
}

}  // namespace

std::chrono::nanoseconds default_receive_spin() {
  constexpr unsigned kCores = 8;
  return std::chrono::microseconds(std::thread::hardware_concurrency() < kCores ? 0 : 50);
}

Result<std::unique_ptr<Link>> tcp::make_link(Bootstrap bootstrap, const LinkOptions& options) {
  const Deadline deadline = Clock::now() + bootstrap.timeout;
  RCUDA_RETURN_IF_ERROR(check_window_bytes(options.window_bytes, "own"));
  Hello own;
  own.window_bytes = options.window_bytes;
  own.peer_timeout_ms = static_cast<uint32_t>(options.peer_timeout.count());
  own.streams = static_cast<uint32_t>(
      std::clamp<int>(options.bulk_streams, 1, static_cast<int>(kMaxBulkStreams)));
  const Socket& control = bootstrap.control;
  tune(control.fd(), options.peer_timeout);
  RCUDA_RETURN_IF_ERROR(send_all(control, bytes_of(own), deadline));
  Hello peer;
  RCUDA_RETURN_IF_ERROR(recv_all(control, writable_bytes_of(peer), deadline));
  if (peer.magic != kHelloMagic || peer.streams == 0) {
    return Status{Code::kProtocol, "the peer does not speak this TCP protocol"};
  }
  RCUDA_RETURN_IF_ERROR(check_window_bytes(peer.window_bytes, "the peer's"));

  TcpLink::Setup setup;
  const size_t count = bootstrap.server ? own.streams : peer.streams;
  if (!(bootstrap.server ? bootstrap.accept_stream : bootstrap.open_stream)) {
    return Status{Code::kInvalidArgument, "tcp needs a way to make further connections"};
  }
  Result<std::vector<Socket>> streams =
      make_streams(bootstrap, std::min(count, kMaxBulkStreams), deadline);
  if (!streams) return streams.status();
  for (const Socket& stream : *streams) tune(stream.fd(), options.peer_timeout);
  void* window = ::mmap(nullptr, options.window_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (window == MAP_FAILED) return Status::from_errno(errno, "allocating a window");
  // How often the receiving thread checks whether the peer is silent.
  set_receive_timeout(control.fd(),
                      options.peer_timeout.count() != 0
                          ? std::max(options.peer_timeout / 4, std::chrono::milliseconds(10))
                          : std::chrono::milliseconds(kHostLost) / 4);
  setup.window = Mapping(window, options.window_bytes);
  setup.streams = std::move(*streams);
  setup.control = std::move(bootstrap.control);
  setup.peer_window_bytes = peer.window_bytes;
  setup.heartbeat = heartbeat_interval(peer.peer_timeout_ms);
  setup.peer_timeout = options.peer_timeout;
  setup.bulk = {options.receive_spin, options.sends_pages};
  setup.answers = options.answers;
  auto link = std::make_unique<TcpLink>(std::move(setup));
  RCUDA_RETURN_IF_ERROR(link->start());
  return std::unique_ptr<Link>(std::move(link));
}

}  // namespace rcuda::transport
