// The Link over InfiniBand verbs. Windows are registered memory; a put is one RDMA write into the
// peer's window; transfers are RDMA writes and reads of registered regions (bulk_engine.h). The
// control socket stays: it carries announcements and signs of life, and its end is the peer's.
//
// Sleeping. A receiver polls memory and costs its peer nothing. To sleep it must be woken, by a
// write with immediate data, which costs a receive and a completion; so the peer sends one only
// when asked:
//
//   sleeper                                   peer
//   look at the window: nothing
//   kArm  ---------------------------------->  (progress thread, in the order of its puts:)
//                                              armed = true; post kAck
//   kAck: look again  <----------------------
//   nothing: sleep on
//                                              put with wake: armed, so it carries kWake; armed =
//                                              false
//   kWake: look again <----------------------
//
// No wake-up is lost: the queue pair is ordered, so what was put before `armed` was set has arrived
// when kAck does, and every later put with wake sees `armed`. A side has at most one kArm, one kAck
// and one kWake underway that the other has not taken (the next kArm follows the kWake, which
// follows the kAck), and one kFlush at the end; sixteen posted receives can never run out.
//
// Completions. Puts ask for one every quarter of the queue, which the next putters poll. A thread
// that goes to sleep sends kArm signalled and has the adapter report its completion, so the failure
// of anything it sent before is noticed while it sleeps. One progress thread sleeps on the
// completion channel, handles immediates and finished transfers, and costs nothing while nothing
// happens.
#include "common/transport/verbs/verbs_link.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "common/base/log.h"
#include "common/transport/control_channel.h"
#include "common/transport/gather.h"
#include "common/transport/link_core.h"
#include "common/transport/mapping.h"
#include "common/transport/socket_io.h"
#include "common/transport/verbs/bulk_engine.h"
#include "common/transport/verbs/connection.h"
#include "common/transport/verbs/device.h"
#include "common/transport/verbs/put_queue.h"

namespace rcuda::transport::verbs {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kHelloMagic = 0x3173627276637572;  // "rucvrbs1"
constexpr size_t kMostQueues = 16;
constexpr uint32_t kReceives = 16;
// How long a lost queue pair may precede the peer's farewell on the control socket.
constexpr auto kFarewellGrace = std::chrono::milliseconds(300);
// How long the last puts may take to arrive when a Link is closed, and posted transfers to come
// back.
constexpr auto kLastPuts = std::chrono::seconds(2);

enum Immediate : uint32_t { kFlush = 0, kArm = 1, kAck = 2, kWake = 3 };

struct Hello {
  uint64_t magic = kHelloMagic;
  uint64_t window_bytes = 0;
  uint64_t window_address = 0;
  uint32_t window_rkey = 0;
  uint32_t peer_timeout_ms = 0;
  uint32_t queues = 0;  // for transfers
  uint16_t family = 0;  // of the server's address
  uint16_t port = 0;
  uint8_t address[16] = {};
  Token token{};
};
static_assert(sizeof(Hello) == 72);

class VerbsLink final : public LinkCore {
 public:
  explicit VerbsLink(const LinkOptions& options)
      : LinkCore(&doorbell_state_, false),
        peer_timeout_(options.peer_timeout),
        put_queue_({work_requests_, doorbells_, completions_},
                   [this](const std::string& why) { lose(why); }),
        bulk_(
            {work_requests_, doorbells_, completions_, transfer_bytes_, copied_bytes_},
            [this](const std::string& why) { lose(why); },
            [this](uint64_t region) {
              control_->send({.kind = ControlMessage::kRetired, .region = region});
            }) {}
  ~VerbsLink() override;

  Status connect(Bootstrap bootstrap, const LinkOptions& options);

  const char* medium() const override { return "verbs"; }
  std::span<std::byte> window() override { return {window_.data(), window_.size()}; }
  size_t peer_window_bytes() const override { return peer_window_bytes_; }
  Status put(uint64_t offset, std::span<const Bytes> pieces, Wake wake) override;
  Result<Region> expose(void* base, size_t bytes, int backing, uint64_t backing_offset) override;
  Status unexpose(RegionId region) override;
  Result<void*> map(RegionId, void*) override { return static_cast<void*>(nullptr); }
  Status unmap(RegionId) override { return {Code::kNotFound, "verbs maps no regions"}; }
  void write(RegionId region, uint64_t offset, const void* local, size_t bytes,
             TransferDone done) override;
  void read(RegionId region, uint64_t offset, void* local, size_t bytes,
            TransferDone done) override;
  void close() override;
  void abandon() noexcept override;

 private:
  Status make_window(size_t bytes);
  Status make_queues();
  Status open(int socket, bool server, Hello* own, Hello* peer, Deadline deadline);
  std::vector<QueuePairPlan> plans(size_t queues) const;
  Status start(UniqueFd control, const Hello& peer);

  void on_broken() override;
  void before_sleep() override;
  Status on_control(const ControlMessage& message);
  // The queue pairs failed. The peer's farewell or end, if that is why, is about to be read.
  void lose(const std::string& why);
  void poke();

  // The progress thread.
  void run();
  void wait_for_events();
  void take_completion_events();
  void take_immediates();
  void take_connection_events();
  void wind_up();

  const std::chrono::milliseconds peer_timeout_;
  size_t peer_window_bytes_ = 0;
  DoorbellState doorbell_state_;

  // Destroyed from the bottom up: queue pairs go first, explicitly.
  Connection connection_;
  CompChannel channel_;
  Cq send_cq_;
  Cq receive_cq_;
  Cq bulk_cq_;
  Mapping window_;
  Mr window_mr_;
  PutQueue put_queue_;
  BulkEngine bulk_;

  std::atomic<bool> armed_{false};       // this side asked to be woken and was not yet
  std::atomic<bool> peer_armed_{false};  // written in the order of the puts only
  std::atomic<bool> closing_{false};

  std::mutex regions_mutex_;
  std::condition_variable retired_;
  std::unordered_map<uint64_t, std::shared_ptr<Registration>> exposed_;  // regions_mutex_
  std::unordered_set<uint64_t> retiring_;                                // regions_mutex_
  uint64_t next_region_ = 1;                                             // regions_mutex_

  std::mutex loss_mutex_;
  std::string loss_;              // loss_mutex_: why the queue pairs failed
  Clock::time_point loss_known_;  // loss_mutex_

  UniqueFd poke_;
  std::thread progress_;
  std::unique_ptr<ControlChannel> control_;
};

VerbsLink::~VerbsLink() {
  close();
  if (progress_.joinable()) progress_.join();
  control_.reset();
  connection_.destroy_queue_pairs();
}

Status VerbsLink::make_window(size_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return Status::from_errno(errno, "allocating a window");
  window_ = Mapping(base, bytes);
  window_mr_.reset(
      ibv_reg_mr(connection_.pd(), base, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  return window_mr_ ? Status() : registration_error(errno, bytes);
}

Status VerbsLink::make_queues() {
  ibv_context* context = connection_.context();
  channel_.reset(ibv_create_comp_channel(context));
  if (!channel_) return Status::from_errno(errno, "ibv_create_comp_channel");
  ::fcntl(channel_->fd, F_SETFL, ::fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  const auto make = [&](int depth) {
    return Cq(ibv_create_cq(context, depth, nullptr, channel_.get(), 0));
  };
  send_cq_ = make(PutQueue::kDepth + 16);
  receive_cq_ = make(4 * kReceives);
  bulk_cq_ = make(static_cast<int>(kMostQueues * BulkEngine::kDepth + 16));
  if (!send_cq_ || !receive_cq_ || !bulk_cq_) return Status::from_errno(errno, "ibv_create_cq");
  if (ibv_req_notify_cq(receive_cq_.get(), 0) != 0 || ibv_req_notify_cq(bulk_cq_.get(), 0) != 0) {
    return Status{Code::kSystem, "ibv_req_notify_cq"};
  }
  return put_queue_.open(connection_.pd());
}

std::vector<QueuePairPlan> VerbsLink::plans(size_t queues) const {
  std::vector<QueuePairPlan> plans(1 + queues);
  plans[0] = {
      send_cq_.get(), receive_cq_.get(), {PutQueue::kDepth, kReceives, PutQueue::kInlineBytes}};
  for (size_t i = 1; i < plans.size(); ++i) {
    plans[i] = {bulk_cq_.get(), bulk_cq_.get(), {BulkEngine::kDepth, 0, 0}};
  }
  return plans;
}

void write_address(const Address& address, uint16_t port, Hello* hello) {
  hello->family = address.storage.ss_family;
  hello->port = port;
  if (hello->family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    std::memcpy(hello->address, &v6->sin6_addr, 16);
  } else {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    std::memcpy(hello->address, &v4->sin_addr, 4);
  }
}

Address read_address(const Hello& hello) {
  Address address;
  address.storage.ss_family = hello.family;
  if (hello.family == AF_INET6) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
    std::memcpy(&v6->sin6_addr, hello.address, 16);
  } else {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
    std::memcpy(&v4->sin_addr, hello.address, 4);
  }
  address.set_port(hello.port);
  return address;
}

// In place of a Hello: why there will be none, so that both sides can tell their users.
constexpr uint64_t kRefusalMagic = 0x5f73627276637572;  // "rucvrbs_"
struct Refusal {
  char why[256] = {};
};

void send_refusal(int socket, const Status& status) {
  Hello hello;
  hello.magic = kRefusalMagic;
  Refusal refusal;
  status.context().copy(refusal.why, sizeof refusal.why - 1);
  const Deadline deadline = Clock::now() + kFarewellGrace;
  if (send_all(socket, bytes_of(hello), deadline).ok()) {
    (void)send_all(socket, bytes_of(refusal), deadline);
  }
}

Status receive_hello(int socket, Hello* peer, Deadline deadline) {
  RCUDA_RETURN_IF_ERROR(recv_all(socket, writable_bytes_of(*peer), deadline));
  if (peer->magic == kRefusalMagic) {
    Refusal refusal;
    RCUDA_RETURN_IF_ERROR(recv_all(socket, writable_bytes_of(refusal), deadline));
    refusal.why[sizeof refusal.why - 1] = '\0';
    return {Code::kUnavailable, std::string("the peer: ") + refusal.why};
  }
  if (peer->magic != kHelloMagic || peer->queues == 0 ||
      (peer->family != AF_INET && peer->family != AF_INET6)) {
    return {Code::kProtocol, "the peer does not speak this verbs protocol"};
  }
  return check_window_bytes(peer->window_bytes, "the peer's");
}

// The server goes first: the client needs its address to find the device, and with that its window.
Status VerbsLink::open(int socket, bool server, Hello* own, Hello* peer, Deadline deadline) {
  std::string why;
  Result<Address> local = choose_local_address(socket, &why);
  if (!local) return local.status();
  if (server) {
    RCUDA_RETURN_IF_ERROR(connection_.open_server(*local));
    write_address(*local, connection_.port(), own);
    if (::getrandom(own->token.data(), own->token.size(), 0) !=
        static_cast<ssize_t>(own->token.size())) {
      return Status::from_errno(errno, "getrandom");
    }
  } else {
    RCUDA_RETURN_IF_ERROR(receive_hello(socket, peer, deadline));
    RCUDA_RETURN_IF_ERROR(connection_.open_client(*local, read_address(*peer), deadline));
    write_address(*local, 0, own);
  }
  RCUDA_INFO("verbs: %s, because %s", describe(connection_.first_id(), *local).c_str(),
             why.c_str());
  RCUDA_RETURN_IF_ERROR(make_window(own->window_bytes));
  RCUDA_RETURN_IF_ERROR(make_queues());
  own->window_address = reinterpret_cast<uint64_t>(window_.data());
  own->window_rkey = window_mr_->rkey;
  RCUDA_RETURN_IF_ERROR(send_all(socket, bytes_of(*own), deadline));
  return server ? receive_hello(socket, peer, deadline) : Status();
}

Status VerbsLink::connect(Bootstrap bootstrap, const LinkOptions& options) {
  const Deadline deadline = Clock::now() + bootstrap.timeout;
  RCUDA_RETURN_IF_ERROR(check_window_bytes(options.window_bytes, "own"));
  const int socket = bootstrap.control.get();
  Hello own;
  Hello peer;
  own.window_bytes = options.window_bytes;
  own.peer_timeout_ms = static_cast<uint32_t>(options.peer_timeout.count());
  own.queues = static_cast<uint32_t>(
      std::clamp<int>(options.bulk_streams, 1, static_cast<int>(kMostQueues)));
  Status opened = open(socket, bootstrap.server, &own, &peer, deadline);
  if (!opened.ok()) {
    if (opened.code() != Code::kUnavailable) send_refusal(socket, opened);
    return opened;
  }

  const std::vector<QueuePairPlan> queues = plans(std::min(own.queues, peer.queues));
  RCUDA_RETURN_IF_ERROR(bootstrap.server
                            ? connection_.connect_server(own.token, queues, deadline)
                            : connection_.connect_client(peer.token, queues, deadline));
  ibv_port_attr port{};
  if (ibv_query_port(connection_.context(), connection_.first_id().port_num, &port) != 0) {
    return Status::from_errno(errno, "ibv_query_port");
  }
  put_queue_.start(connection_.qp(0), send_cq_.get(), connection_.inline_bytes(0),
                   {peer.window_address, peer.window_rkey});
  std::vector<ibv_qp*> bulk;
  for (size_t i = 1; i < connection_.size(); ++i) bulk.push_back(connection_.qp(i));
  bulk_.start(connection_.pd(), std::move(bulk), bulk_cq_.get(), port.max_msg_sz);

  // Only when both sides stand may either use the other.
  const uint8_t ready = 1;
  uint8_t peer_ready = 0;
  RCUDA_RETURN_IF_ERROR(send_all(socket, bytes_of(ready), deadline));
  RCUDA_RETURN_IF_ERROR(recv_all(socket, writable_bytes_of(peer_ready), deadline));
  return start(std::move(bootstrap.control), peer);
}

Status VerbsLink::start(UniqueFd control, const Hello& peer) {
  peer_window_bytes_ = peer.window_bytes;
  const int on = 1;
  ::setsockopt(control.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  poke_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!poke_) return Status::from_errno(errno, "eventfd");
  const ControlChannel::Timing timing{.send_every = heartbeat_interval(peer.peer_timeout_ms),
                                      .expect_within = peer_timeout_};
  ControlChannel::Callbacks callbacks;
  callbacks.on_message = [this](const ControlMessage& message, UniqueFd) {
    return on_control(message);
  };
  callbacks.on_end = [this](bool intended, const std::string& why) {
    fail(intended ? End::kIntended : End::kLost, why);
  };
  control_ = std::make_unique<ControlChannel>(std::move(control), UniqueFd(), timing,
                                              std::move(callbacks));
  progress_ = std::thread([this] { run(); });
  return control_->start();
}

void VerbsLink::close() {
  if (closing_.exchange(true)) return;
  if (!broken() && control_) {
    // The farewell takes another way than the puts before it, and must not overtake them.
    const auto deadline = Clock::now() + kLastPuts;
    if (put_queue_.signal(kFlush, [] {}).ok()) {
      while (!put_queue_.poll() && !broken() && Clock::now() < deadline) std::this_thread::yield();
    }
    control_->finish();
  }
  fail(End::kIntended, "the session was closed");
}

void VerbsLink::on_broken() {
  put_queue_.stop();
  bulk_.stop(status());
  {
    std::lock_guard lock(regions_mutex_);
    retired_.notify_all();
  }
  poke();
}

void VerbsLink::abandon() noexcept {
  control_->abandon();
  ::close(poke_.get());
  ::close(channel_->fd);
  ::close(connection_.events()->fd);
  ::close(connection_.context()->cmd_fd);
  ::close(connection_.context()->async_fd);
}

void VerbsLink::poke() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(poke_.get(), &one, sizeof one);
}

void VerbsLink::lose(const std::string& why) {
  std::lock_guard lock(loss_mutex_);
  if (!loss_.empty()) return;
  loss_ = why;
  loss_known_ = Clock::now();
  poke();
}

Status VerbsLink::put(uint64_t offset, std::span<const Bytes> pieces, Wake wake) {
  const size_t total = total_bytes(pieces);
  RCUDA_RETURN_IF_ERROR(check_put(offset, pieces.size(), total, peer_window_bytes_));
  bool woke = false;
  const auto wakes = [this, wake] {
    if (wake == Wake::kNo || !peer_armed_.load(std::memory_order_relaxed)) return false;
    peer_armed_.store(false, std::memory_order_relaxed);
    return true;
  };
  Status sent = put_queue_.put(offset, pieces, total, wakes, kWake, &woke);
  if (!sent.ok()) {
    // lose() has been told, and the progress thread ends the Link for all alike, unless this is it.
    if (std::this_thread::get_id() != progress_.get_id()) {
      return wait([] { return false; }, Clock::time_point::max());
    }
    fail(End::kLost, sent.context());
    return status();
  }
  puts_.fetch_add(1, std::memory_order_relaxed);
  window_bytes_.fetch_add(total, std::memory_order_relaxed);
  if (woke) wakes_.fetch_add(1, std::memory_order_relaxed);
  return {};
}

void VerbsLink::before_sleep() {
  if (broken() || armed_.exchange(true)) return;
  ibv_req_notify_cq(send_cq_.get(), 0);
  (void)put_queue_.signal(kArm, [] {});  // a failure has been reported through lose()
}

Result<Region> VerbsLink::expose(void* base, size_t bytes, int, uint64_t) {
  if (broken()) return status();
  if (base == nullptr || bytes == 0) return Status{Code::kInvalidArgument, "empty region"};
  Result<std::shared_ptr<Registration>> registration = bulk_.add_local(base, bytes);
  if (!registration) return registration.status();
  std::lock_guard lock(regions_mutex_);  // held while sending: announcements go in order
  const uint64_t id = next_region_++;
  exposed_[id] = *registration;
  control_->send({.kind = ControlMessage::kAnnounce,
                  .region = id,
                  .bytes = bytes,
                  .address = reinterpret_cast<uint64_t>(base),
                  .key = (*registration)->mr->rkey});
  return Region{RegionId{id}, bytes};
}

Status VerbsLink::unexpose(RegionId region) {
  const auto id = static_cast<uint64_t>(region);
  std::shared_ptr<Registration> registration;
  {
    std::unique_lock lock(regions_mutex_);
    const auto found = exposed_.find(id);
    if (found == exposed_.end()) return {Code::kNotFound, "no such region is exposed"};
    registration = std::move(found->second);
    exposed_.erase(found);
    bulk_.remove_local(registration);
    retiring_.insert(id);
    control_->send({.kind = ControlMessage::kRetire, .region = id});
    // A peer that is alive answers; one that is not breaks the Link.
    retired_.wait(lock, [&] { return broken() || !retiring_.contains(id); });
  }
  registration.reset();
  return status();
}

Status VerbsLink::on_control(const ControlMessage& message) {
  switch (message.kind) {
    case ControlMessage::kAnnounce:
      return bulk_.add_remote(message.region, message.bytes, message.address, message.key);
    case ControlMessage::kRetire:
      return bulk_.retire_remote(message.region);
    case ControlMessage::kRetired: {
      std::lock_guard lock(regions_mutex_);
      if (retiring_.erase(message.region) == 0) break;
      retired_.notify_all();
      return {};
    }
    default:
      break;
  }
  return {Code::kProtocol, "protocol violation: unexpected control message"};
}

void VerbsLink::write(RegionId region, uint64_t offset, const void* local, size_t bytes,
                      TransferDone done) {
  auto* from = static_cast<std::byte*>(const_cast<void*>(local));
  // One that must wait for an announcement has a deadline that the progress thread keeps.
  if (bulk_.transfer(true, static_cast<uint64_t>(region), offset, from, bytes, peer_timeout_,
                     std::move(done))) {
    poke();
  }
}

void VerbsLink::read(RegionId region, uint64_t offset, void* local, size_t bytes,
                     TransferDone done) {
  if (bulk_.transfer(false, static_cast<uint64_t>(region), offset, static_cast<std::byte*>(local),
                     bytes, peer_timeout_, std::move(done))) {
    poke();
  }
}

void VerbsLink::run() {
  while (!broken()) {
    wait_for_events();
    take_completion_events();
    take_immediates();
    bulk_.poll();
    // Completions of puts matter here only while somebody sleeps on what they may have failed to
    // do.
    if (!put_queue_.poll()) {
      ibv_req_notify_cq(send_cq_.get(), 0);
      put_queue_.poll();
    }
    take_connection_events();
    std::unique_lock lock(loss_mutex_);
    if (!loss_.empty() && Clock::now() >= loss_known_ + kFarewellGrace) {
      const std::string why = loss_;
      lock.unlock();
      fail(End::kLost, why);
    }
  }
  wind_up();
}

void VerbsLink::wait_for_events() {
  Clock::time_point until = bulk_.expire();
  {
    std::lock_guard lock(loss_mutex_);
    if (!loss_.empty()) until = std::min(until, loss_known_ + kFarewellGrace);
  }
  pollfd entries[] = {
      {channel_->fd, POLLIN, 0}, {connection_.events()->fd, POLLIN, 0}, {poke_.get(), POLLIN, 0}};
  ::poll(entries, std::size(entries), poll_timeout_ms(until));
  if (entries[2].revents != 0) {
    uint64_t count;
    [[maybe_unused]] const ssize_t got = ::read(poke_.get(), &count, sizeof count);
  }
}

// The queues are polled after their notification is renewed, so nothing falls between.
void VerbsLink::take_completion_events() {
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  while (ibv_get_cq_event(channel_.get(), &cq, &context) == 0) {
    ibv_ack_cq_events(cq, 1);
    if (cq != send_cq_.get()) ibv_req_notify_cq(cq, 0);
  }
}

void VerbsLink::take_immediates() {
  ibv_wc completions[kReceives];
  int count;
  while ((count = ibv_poll_cq(receive_cq_.get(), kReceives, completions)) > 0) {
    completions_.fetch_add(count, std::memory_order_relaxed);
    for (const ibv_wc& completion : std::span(completions, count)) {
      if (completion.status != IBV_WC_SUCCESS) {
        lose(std::string("the command queue pair failed: ") + ibv_wc_status_str(completion.status));
        continue;
      }
      ibv_recv_wr receive{};
      ibv_recv_wr* bad = nullptr;
      if (const int error = ibv_post_recv(connection_.qp(0), &receive, &bad); error != 0) {
        lose(std::string("ibv_post_recv: ") + std::strerror(error));
      }
      switch (ntohl(completion.imm_data)) {
        case kArm:
          (void)put_queue_.signal(kAck,
                                  [this] { peer_armed_.store(true, std::memory_order_relaxed); });
          break;
        case kWake:
          armed_.store(false);
          doorbell_.ring();
          break;
        default:
          doorbell_.ring();
      }
    }
  }
}

void VerbsLink::take_connection_events() {
  rdma_cm_event* event = nullptr;
  while (rdma_get_cm_event(connection_.events(), &event) == 0) {
    const rdma_cm_event_type type = event->event;
    rdma_ack_cm_event(event);
    if (type == RDMA_CM_EVENT_DISCONNECTED || type == RDMA_CM_EVENT_DEVICE_REMOVAL) {
      lose(type == RDMA_CM_EVENT_DISCONNECTED ? "the peer disconnected its queue pairs"
                                              : "the RDMA device was removed");
    }
  }
}

// Callers get their memory back only when the adapter is through with it.
void VerbsLink::wind_up() {
  // The thread that broke the Link may not have got to on_broken() yet.
  bulk_.stop(status());
  put_queue_.quiesce();
  connection_.flush();
  const auto deadline = Clock::now() + kLastPuts;
  while (!bulk_.idle() && Clock::now() < deadline) {
    bulk_.poll();
    std::this_thread::yield();
  }
  connection_.destroy_queue_pairs();
  bulk_.fail_in_flight();
}

}  // namespace

Status usable(int control_socket) {
  std::string why;
  Result<Address> local = choose_local_address(control_socket, &why);
  if (!local) return local.status();
  Connection probe;
  return probe.open_server(*local);
}

Result<std::unique_ptr<Link>> make_link(Bootstrap bootstrap, const LinkOptions& options) {
  auto link = std::make_unique<VerbsLink>(options);
  RCUDA_RETURN_IF_ERROR(link->connect(std::move(bootstrap), options));
  return std::unique_ptr<Link>(std::move(link));
}

}  // namespace rcuda::transport::verbs
