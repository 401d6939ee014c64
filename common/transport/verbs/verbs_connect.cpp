// Makes a verbs Link: first the device, memory and queues of this side, then the queue pairs.
#include <algorithm>
#include <cerrno>
#include <vector>

#include <fcntl.h>
#include <sys/eventfd.h>

#include "common/base/log.h"
#include "common/base/random_bytes.h"
#include "common/base/socket_io.h"
#include "common/base/start_thread.h"
#include "common/base/units.h"
#include "common/transport/verbs/device.h"
#include "common/transport/verbs/errors.h"
#include "common/transport/verbs/verbs_link.h"

namespace rcuda::transport::verbs {
namespace {

// Returns why a send failed. A peer that has failed has sent its reason before it closed the
// socket, and `received` is that reason.
Status reason_of(const Status& received, const Status& sent) {
  return received.ok() ? sent : received;
}

}  // namespace

Status VerbsLink::make_window(size_t bytes) {
  window_ = Mapping::anonymous(bytes);
  if (!window_) {
    return allocation_error(errno, "allocating a window of " + exact_bytes_text(bytes));
  }
  window_mr_.reset(ibv_reg_mr(connection_.pd(), window_.data(), bytes,
                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  return window_mr_ ? Status() : registration_error(errno, bytes);
}

Status VerbsLink::make_queues() {
  ibv_context* context = connection_.context();
  channel_.reset(ibv_create_comp_channel(context));
  if (!channel_) {
    return allocation_error(errno, "RDMA connection: ibv_create_comp_channel failed");
  }
  ::fcntl(channel_->fd, F_SETFL, ::fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  const auto make = [&](int depth) {
    return Cq(ibv_create_cq(context, depth, this, channel_.get(), 0));
  };
  // || stops at the first failure, so errno belongs to it.
  if (!(send_cq_ = make(PutQueue::kDepth + 16)) || !(receive_cq_ = make(4 * kReceives)) ||
      !(bulk_cq_ = make(kMaxQueues * (BulkEngine::kDepth + BulkEngine::kReceives) + 16))) {
    return allocation_error(errno, "RDMA connection: ibv_create_cq failed");
  }
  for (ibv_cq* const queue : {receive_cq_.get(), bulk_cq_.get()}) {
    if (const int error = ibv_req_notify_cq(queue, 0); error != 0) {
      return Status::from_errno(error, "RDMA connection: ibv_req_notify_cq failed");
    }
  }
  return put_queue_.open(connection_.pd());
}

std::vector<QueuePairPlan> VerbsLink::plans(size_t queues) {
  std::vector<QueuePairPlan> plans(1 + queues);
  plans[0] = {send_cq_.get(),
              receive_cq_.get(),
              {PutQueue::kDepth, kReceives, PutQueue::kInlineBytes},
              this};
  for (size_t i = 1; i < plans.size(); ++i) {
    plans[i] = {
        bulk_cq_.get(), bulk_cq_.get(), {BulkEngine::kDepth, BulkEngine::kReceives, 0}, this};
  }
  return plans;
}

// The server sends its Hello first: the client needs the server's address to find its own device,
// where it registers its window.
Status VerbsLink::open(const Socket& control, bool server, Hello* own, Hello* peer,
                       Deadline deadline) {
  std::string why;
  RCUDA_ASSIGN_OR_RETURN(Address local, choose_local_address(control.fd(), near_pci_, &why));
  if (server) {
    RCUDA_RETURN_IF_ERROR(connection_.open_server(local));
    write_address(local, connection_.port(), own);
    RCUDA_RETURN_IF_ERROR(fill_randomly(own->token));
  } else {
    RCUDA_RETURN_IF_ERROR(receive_hello(control, peer, deadline));
    RCUDA_RETURN_IF_ERROR(connection_.open_client(local, read_address(*peer), {control, deadline}));
    write_address(local, 0, own);
  }
  device_name_ = ibv_get_device_name(connection_.first_id().verbs->device);
  RCUDA_INFO("verbs: %s, because %s", describe(connection_.first_id(), local).c_str(), why.c_str());
  RCUDA_RETURN_IF_ERROR(make_window(own->greeting.window_bytes));
  RCUDA_RETURN_IF_ERROR(make_queues());
  own->window_address = reinterpret_cast<uint64_t>(window_.data());
  own->window_rkey = window_mr_->rkey;
  const Status sent = send_all(control, bytes_of(*own), deadline);
  if (!sent.ok()) return reason_of(receive_hello(control, peer, deadline), sent);
  return server ? receive_hello(control, peer, deadline) : Status();
}

Status VerbsLink::connect(Bootstrap bootstrap, const LinkOptions& options) {
  const Deadline deadline = Clock::now() + bootstrap.timeout;
  RCUDA_RETURN_IF_ERROR(check_window_bytes(options.window_bytes, "this side's"));
  const Socket& control = bootstrap.control;
  Hello own;
  Hello peer;
  own.greeting = make_greeting(kHelloMagic, options, kMaxQueues, kUsualQueues);
  Status stands = open(control, bootstrap.server, &own, &peer, deadline);
  if (stands.ok()) stands = connect_queues(control, bootstrap.server, own, peer, deadline);
  if (stands.ok()) stands = prepare(control, peer);
  if (!stands.ok()) {
    send_refusal(control, stands);  // the peer may be waiting for this side
    return stands;
  }
  // Neither side may use the Link before both are ready. After send_ready() nothing may fail: the
  // peer then has a Link and would not fall back to another medium.
  const Status sent = send_ready(control, deadline);
  stands = receive_ready(control, deadline);
  if (!sent.ok()) stands = reason_of(stands, sent);
  if (!stands.ok()) {
    fail(End::kIntended, stands.context());  // the threads end; the caller says why
    return stands;
  }
  control_->begin(std::move(bootstrap.control));
  return {};
}

Status VerbsLink::connect_queues(const Socket& control, bool server, const Hello& own,
                                 const Hello& peer, Deadline deadline) {
  const std::vector<QueuePairPlan> queues =
      plans(std::min<size_t>((server ? own : peer).greeting.streams, kMaxQueues));
  const Patience patience{control, deadline};
  RCUDA_RETURN_IF_ERROR(server ? connection_.connect_server(own.token, queues, patience)
                               : connection_.connect_client(peer.token, queues, patience));
  const uint8_t number = connection_.first_id().port_num;
  ibv_port_attr port{};
  if (const int error = ibv_query_port(connection_.context(), number, &port); error != 0) {
    return Status::from_errno(error, "reading the state of the adapter's port (ibv_query_port)");
  }
  loss_.watch(connection_.context(), number);
  put_queue_.start(connection_.qp(0), send_cq_.get(), connection_.inline_bytes(0),
                   {peer.window_address, peer.window_rkey});
  std::vector<ibv_qp*> bulk;
  for (size_t i = 1; i < connection_.size(); ++i) bulk.push_back(connection_.qp(i));
  memory_.start(connection_.pd());
  bulk_.start(connection_.pd(), std::move(bulk), bulk_cq_.get(), port.max_msg_sz);
  return {};
}

Status VerbsLink::prepare(const Socket& control, const Hello& peer) {
  peer_window_bytes_ = peer.greeting.window_bytes;
  keep_alive(control.fd());
  poke_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!poke_) return Status::from_errno(errno, "making an eventfd for an RDMA connection");
  const ControlChannel::Timing timing{
      .send_every = heartbeat_interval(peer.greeting.peer_timeout_ms),
      .expect_within = peer_timeout_};
  ControlChannel::Callbacks callbacks;
  callbacks.on_message = [this](const ControlMessage& message, UniqueFd) {
    return on_control(message);
  };
  callbacks.on_end = [this](bool intended, const std::string& why) {
    on_control_end(intended, why);
  };
  control_ = std::make_unique<ControlChannel>(UniqueFd(), timing, std::move(callbacks));
  adapter_.begin(connection_.context(), this, note_);
  Status prepared = control_->prepare();
  if (prepared.ok()) prepared = start_thread(&progress_, [this] { run(); });
  if (!prepared.ok()) fail(End::kIntended, prepared.context());  // the caller says why
  return prepared;
}

Status usable(int control_socket) {
  std::string why;
  RCUDA_ASSIGN_OR_RETURN(Address local, choose_local_address(control_socket, {}, &why));
  Connection probe;
  return probe.open_server(local);
}

Result<std::unique_ptr<Link>> make_link(Bootstrap bootstrap, const LinkOptions& options) {
  auto link = std::make_unique<VerbsLink>(options);
  RCUDA_RETURN_IF_ERROR(link->connect(std::move(bootstrap), options));
  return std::unique_ptr<Link>(std::move(link));
}

}  // namespace rcuda::transport::verbs
