// The Link over InfiniBand verbs. Windows are registered memory. A put is one RDMA write into the
// peer's window; transfers are RDMA writes and reads of registered regions (bulk_engine.h). The
// control socket stays open: it carries announcements and heartbeats, and its end means the end of
// the peer.
//
// Sleeping. A receiver that polls memory costs its peer nothing. A receiver that sleeps must be
// woken by a write with immediate data, which costs a receive and a completion. So the peer sends
// such a write only on request:
//
//   sleeper                                   peer
//   check the window: nothing
//   kArm  ---------------------------------->  (progress thread, in the order of its puts:)
//                                              armed = true; post kAck
//   kAck: check again  <---------------------
//   nothing: sleep on
//                                              put with wake: armed, so the put carries kWake;
//                                              armed = false
//   kWake: check again  <--------------------
//
// No wake-up is lost: the queue pair is ordered, so everything put before `armed` was set has
// arrived when kAck does, and every later put with wake sees `armed`. The next kArm follows the
// kWake, which follows the kAck. So each side has at most one kArm, one kAck and one kWake in
// flight, and one kFlush at the end. The sixteen posted receives are sufficient.
//
// Completions. A put is signalled if a quarter of the queue's places, or of the staging ring, has
// been used since the last signalled put; later puts poll for its completion. A thread that goes to
// sleep sends a signalled kArm and requests notification of its completion, so a failure of earlier
// requests is noticed while the thread sleeps. One progress thread sleeps on the completion channel
// and handles immediates and finished transfers.
#include "common/transport/verbs/verbs_link.h"

#include <cerrno>

#include "common/base/units.h"
#include "common/transport/gather.h"
#include "common/transport/verbs/loopback.h"
#include "common/transport/violation.h"

namespace rcuda::transport::verbs {

VerbsLink::~VerbsLink() {
  close();
  if (progress_.joinable()) progress_.join();
  if (control_) control_->join();  // its thread may be sending an answer through control_
  connection_.destroy_queue_pairs();
}

void VerbsLink::close() {
  if (closing_.exchange(true)) return;
  if (!broken() && control_) {
    // The farewell travels over the control socket, and must not overtake earlier puts.
    const auto deadline = Clock::now() + kLastPuts;
    if (put_queue_.signal(kFlush, [] {}).ok()) {
      while (!put_queue_.poll() && !broken() && Clock::now() < deadline) std::this_thread::yield();
    }
    control_->finish();
  }
  fail(End::kIntended, "this side closed the connection");
}

void VerbsLink::on_broken() {
  put_queue_.stop();
  bulk_.stop(status());
  {
    MutexLock lock(regions_mutex_);
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

Status VerbsLink::put(uint64_t offset, std::span<const Bytes> pieces, Wake wake) {
  const size_t total = total_bytes(pieces);
  RCUDA_RETURN_IF_ERROR(check_put(offset, pieces.size(), total, peer_window_bytes_));
  run_before_put();
  const auto wakes = [this, wake] {
    if (!wakes_peer(wake) || !peer_armed_.load(std::memory_order_relaxed)) return false;
    peer_armed_.store(false, std::memory_order_relaxed);
    counters_.wakes.fetch_add(1, std::memory_order_relaxed);
    return true;
  };
  counters_.puts.fetch_add(1, std::memory_order_relaxed);
  counters_.window_bytes.fetch_add(total, std::memory_order_relaxed);
  Status sent = put_queue_.put(offset, pieces, total, wakes, kWake);
  if (!sent.ok()) {
    // The loss has been noted, and the progress thread ends the Link. Any other thread waits for
    // that.
    if (std::this_thread::get_id() != progress_.get_id()) {
      return wait([] { return false; }, Clock::time_point::max());
    }
    fail(End::kLost, loss_.reason());
    return status();
  }
  return {};
}

void VerbsLink::before_sleep() {
  if (broken() || armed_.exchange(true)) return;
  ibv_req_notify_cq(send_cq_.get(), 0);
  counters_.arms.fetch_add(1, std::memory_order_relaxed);
  (void)put_queue_.signal(kArm, [] {});  // the queue records a failure
}

Result<Region> VerbsLink::expose(void* base, size_t bytes, int, uint64_t) {
  if (broken()) return status();
  RCUDA_RETURN_IF_ERROR(check_region(base, bytes));
  RCUDA_ASSIGN_OR_RETURN(std::shared_ptr<Registration> registration, memory_.expose(base, bytes));
  return add_region(std::move(registration), true);
}

Result<Region> VerbsLink::expose_device(void* base, size_t bytes, const DeviceMemory& memory) {
  if (broken()) return status();
  RCUDA_RETURN_IF_ERROR(check_region(base, bytes));
  RCUDA_ASSIGN_OR_RETURN(std::shared_ptr<Registration> registration,
                         memory_.expose_device(base, bytes, memory));
  return add_region(std::move(registration), memory.for_peer);
}

Region VerbsLink::add_region(std::shared_ptr<Registration> registration, bool for_peer) {
  MutexLock lock(regions_mutex_);  // held while sending: announcements go out in order
  const uint64_t id = next_region_++;
  const size_t bytes = registration->bytes;
  if (for_peer) {
    control_->send({.kind = ControlMessage::kAnnounce,
                    .region = id,
                    .bytes = bytes,
                    .address = registration->base,
                    .key = registration->mr->rkey});
  }
  exposed_[id] = {std::move(registration), for_peer};
  return Region{RegionId{id}, bytes};
}

Status VerbsLink::loop_back(void* to, const void* from, size_t bytes) {
  if (broken()) return status();
  const std::shared_ptr<Registration> target = memory_.find(to, bytes);
  const std::shared_ptr<Registration> source = memory_.find(from, bytes);
  if (!target || !source) {
    return {Code::kInvalidArgument, "cannot test the adapter with " + exact_bytes_text(bytes) +
                                        ": the memory is not exposed over this connection"};
  }
  const auto patience = peer_timeout_.count() != 0 ? peer_timeout_ : kLastPuts;
  return verbs::loop_back(connection_.pd(), connection_.first_id(), connection_.local(),
                          {reinterpret_cast<uint64_t>(to), target->mr.get()},
                          {reinterpret_cast<uint64_t>(from), source->mr.get()}, bytes,
                          Clock::now() + patience);
}

Status VerbsLink::unexpose(RegionId region) {
  const auto id = static_cast<uint64_t>(region);
  Exposed exposed;
  {
    MutexLock lock(regions_mutex_);
    const auto found = exposed_.find(id);
    if (found == exposed_.end()) return not_exposed(region);
    exposed = std::move(found->second);
    exposed_.erase(found);
    memory_.withdraw(exposed.registration);
    if (exposed.for_peer) {
      retiring_.insert(id);
      control_->send({.kind = ControlMessage::kRetire, .region = id});
      // A live peer answers; the loss of the peer breaks the Link.
      retired_.wait(lock, [&]() RCUDA_REQUIRES(regions_mutex_) {
        return broken() || !retiring_.contains(id);
      });
    }
  }
  exposed.registration.reset();
  return status();
}

Status VerbsLink::on_control(const ControlMessage& message) {
  switch (message.kind) {
    case ControlMessage::kAnnounce:
      return bulk_.add_remote(message.region, message.bytes, message.address, message.key);
    case ControlMessage::kRetire: {
      MutexLock lock(region_puts_mutex_);
      await_region_puts();
      return bulk_.retire_remote(message.region);
    }
    case ControlMessage::kRetired: {
      MutexLock lock(regions_mutex_);
      if (retiring_.erase(message.region) == 0) break;
      retired_.notify_all();
      return {};
    }
    default:
      break;
  }
  return {Code::kProtocol,
          violation("unexpected control message of kind " + std::to_string(message.kind) +
                    " from the peer (region " + std::to_string(message.region) + ")")};
}

void VerbsLink::write(RegionId region, uint64_t offset, const void* local, size_t bytes,
                      TransferDone done) {
  write_with_immediate(region, offset, local, bytes, 0, Company::kAlone, std::move(done));
}

void VerbsLink::write_with_immediate(RegionId region, uint64_t offset, const void* local,
                                     size_t bytes, uint32_t immediate, Company company,
                                     TransferDone done) {
  auto* from = static_cast<std::byte*>(const_cast<void*>(local));
  transfer({true, region, offset, from, bytes, immediate, company}, std::move(done));
}

void VerbsLink::read(RegionId region, uint64_t offset, void* local, size_t bytes,
                     TransferDone done) {
  transfer({false, region, offset, static_cast<std::byte*>(local), bytes}, std::move(done));
}

// Uses the queue pair of the puts, so that puts into regions and into the window stay in order.
Status VerbsLink::put_region(RegionId region, uint64_t offset, Bytes bytes) {
  RCUDA_RETURN_IF_ERROR(check_region_put(bytes.size()));
  const bool for_ever = peer_timeout_.count() == 0;
  const auto deadline = for_ever ? Clock::time_point::max() : Clock::now() + peer_timeout_;
  for (;; std::this_thread::sleep_for(std::chrono::microseconds(50))) {
    MutexLock lock(region_puts_mutex_);
    const Result<PutQueue::Target> place = bulk_.place_of(region, offset, bytes.size());
    if (place) {
      uint64_t number = 0;
      RCUDA_RETURN_IF_ERROR(put_queue_.put_into(*place, bytes, &number));
      last_region_put_.store(number, std::memory_order_release);
      count_copied(bytes.size());
      return {};
    }
    if (place.status().code() == Code::kNotFound) return {};  // withdrawn
    if (place.status().code() == Code::kInvalidArgument) {
      fail(End::kLost, place.status().context());
      return status();
    }
    if (broken()) return status();
    if (Clock::now() >= deadline) {
      return {Code::kNotFound, "the peer did not announce region " +
                                   std::to_string(static_cast<uint64_t>(region)) + " within " +
                                   time_text(peer_timeout_)};
    }
  }
}

void VerbsLink::await_region_puts() {
  uint64_t last = last_region_put_.load(std::memory_order_acquire);
  if (last == 0) [[likely]]
    return;
  while (!put_queue_.confirmed(last)) std::this_thread::yield();
  last_region_put_.compare_exchange_strong(last, 0);
}

void VerbsLink::transfer(const TransferRequest& what, TransferDone done) {
  run_before_put();
  // Transfers use other queue pairs, and must come after earlier puts into regions.
  await_region_puts();
  // A transfer that waits for an announcement has a deadline, which the progress thread enforces.
  if (bulk_.transfer(what, peer_timeout_, std::move(done))) poke();
}

}  // namespace rcuda::transport::verbs
