// The progress thread of a verbs Link. It sleeps until the adapter, rdma_cm or another thread has
// work for it, and ends the Link when the queue pairs are lost.
#include <algorithm>
#include <thread>

#include <arpa/inet.h>
#include <poll.h>
#include <unistd.h>

#include "common/base/socket_io.h"
#include "common/transport/verbs/errors.h"
#include "common/transport/verbs/verbs_link.h"

namespace rcuda::transport::verbs {

void VerbsLink::run() {
  while (!broken()) {
    wait_for_events();
    take_completion_events();
    take_immediates();
    bulk_.poll();
    // Requests notification of the puts' completions only while a signal() is unconfirmed: a thread
    // may then be asleep, and a failure must wake it.
    if (!put_queue_.poll()) {
      ibv_req_notify_cq(send_cq_.get(), 0);
      put_queue_.poll();
    }
    take_connection_events();
    if (Clock::now() >= loss_.due()) fail(End::kLost, loss_.reason());
  }
  shut_down();
}

void VerbsLink::wait_for_events() {
  const Clock::time_point until = std::min(bulk_.expire(), loss_.due());
  pollfd entries[] = {{poke_.get(), POLLIN, 0},
                      {channel_->fd, POLLIN, 0},
                      {connection_.events()->fd, POLLIN, 0},
                      {connection_.context()->async_fd, POLLIN, 0}};
  ::poll(entries, std::size(entries), poll_timeout_ms(until));
  if (entries[3].revents != 0) AdapterEvents::take(connection_.context());
  if (entries[0].revents != 0) {
    uint64_t count;
    [[maybe_unused]] const ssize_t got = ::read(poke_.get(), &count, sizeof count);
  }
}

// The queues are polled after notification has been requested again, so no completion is missed.
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
    counters_.completions.fetch_add(count, std::memory_order_relaxed);
    counters_.receives.fetch_add(count, std::memory_order_relaxed);
    for (const ibv_wc& completion : std::span(completions, count)) {
      if (completion.status != IBV_WC_SUCCESS) {
        const bool flushed = completion.status == IBV_WC_WR_FLUSH_ERR;
        loss_.note(flushed ? Loss::Sign::kFlushed : Loss::Sign::kRequest,
                   completion_problem(completion.status, "the command queue pair failed"));
        continue;
      }
      ibv_recv_wr receive{};
      ibv_recv_wr* bad = nullptr;
      if (const int error = ibv_post_recv(connection_.qp(0), &receive, &bad); error != 0) {
        loss_.note(Loss::Sign::kRequest,
                   allocation_error(error, "posting an RDMA receive (ibv_post_recv)").context());
      }
      switch (ntohl(completion.imm_data)) {
        case kArm:
          (void)put_queue_.signal(kAck, [this] {
            peer_armed_.store(true, std::memory_order_relaxed);
            counters_.arm_answers.fetch_add(1, std::memory_order_relaxed);
          });
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
    if (type == RDMA_CM_EVENT_DISCONNECTED) {
      loss_.note(Loss::Sign::kDisconnected, "the peer disconnected its queue pairs; see its log");
    } else if (type == RDMA_CM_EVENT_DEVICE_REMOVAL) {
      loss_.note(Loss::Sign::kDevice, device_gone(connection_.context()));
    }
  }
}

// Callers get their memory back only after the adapter has stopped using it.
void VerbsLink::shut_down() {
  // The thread that broke the Link may not have reached on_broken() yet.
  bulk_.stop(status());
  bulk_.quiesce();
  put_queue_.quiesce();
  connection_.flush();
  const auto deadline = Clock::now() + kLastPuts;
  while (!bulk_.idle() && Clock::now() < deadline) {
    bulk_.poll();
    std::this_thread::yield();
  }
  adapter_.end();
  connection_.destroy_queue_pairs();
  bulk_.fail_in_flight();
  // Without this, a sleeping peer would not notice the end.
  if (!closing_.load()) control_->hang_up();
}

void VerbsLink::on_control_end(bool intended, const std::string& why) {
  if (intended) {
    fail(End::kIntended, why);
  } else {
    fail(End::kLost, loss_.reason_behind(why));
  }
}

}  // namespace rcuda::transport::verbs
