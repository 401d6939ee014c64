#include "common/transport/verbs/connection.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <poll.h>

#include "common/base/socket_io.h"
#include "common/transport/verbs/errors.h"
#include "common/transport/verbs/hello.h"

namespace rcuda::transport::verbs {
namespace {

constexpr int kResolveMs = 2000;
constexpr uint8_t kMaxReads = 16;  // outstanding RDMA reads per queue pair

constexpr char kTestByHand[] =
    "; check that both sides are on one RDMA network and that no firewall drops its packets (RoCE: "
    "UDP port 4791): 'rping -s' on the server, 'rping -c -a ADDRESS' on the client";

Status failed(const char* call) {
  return allocation_error(errno, std::string("RDMA connection: ") + call + " failed");
}

// If the kernel is too old for this option, rdma_cm's default remains.
void set_ack_timeout(rdma_cm_id* id) {
  uint8_t timeout = kAckTimeout;
  (void)rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout);
}

Status event_problem(const rdma_cm_event& event, const std::string& what) {
  if (event.event == RDMA_CM_EVENT_DEVICE_REMOVAL && event.id->verbs != nullptr) {
    return {Code::kUnavailable, what + ": " + device_gone(event.id->verbs)};
  }
  std::string text = what + ": " + rdma_event_str(event.event);
  // -1: librdmacm could not set up the device and does not report the reason, which is often a lack
  // of memory.
  if (event.status == -ENOMEM || event.status == -1) return allocation_error(ENOMEM, text);
  if (event.status != 0) {
    text += " (" +
            std::string(event.status < 0 ? std::strerror(-event.status)
                                         : std::to_string(event.status)) +
            ")";
  }
  const bool rejected = event.event == RDMA_CM_EVENT_REJECTED;
  return {Code::kUnavailable, text + (rejected ? "; see the server's log" : kTestByHand)};
}

}  // namespace

Connection::~Connection() { destroy_queue_pairs(); }

void Connection::destroy_queue_pairs() {
  for (CmId& id : ids_) {
    if (id && id->qp != nullptr) rdma_destroy_qp(id.get());
  }
}

Status Connection::create_id(CmId* id) {
  if (!events_) {
    events_.reset(rdma_create_event_channel());
    if (!events_) {
      return Status{Code::kUnsupported, "rdma_cm is not available (" +
                                            std::string(std::strerror(errno)) +
                                            "): load the modules ib_uverbs and rdma_ucm"};
    }
    const int flags = ::fcntl(events_->fd, F_GETFL);
    ::fcntl(events_->fd, F_SETFL, flags | O_NONBLOCK);
    ::fcntl(events_->fd, F_SETFD, FD_CLOEXEC);
  }
  rdma_cm_id* raw = nullptr;
  if (rdma_create_id(events_.get(), &raw, nullptr, RDMA_PS_TCP) != 0)
    return failed("rdma_create_id");
  id->reset(raw);
  return {};
}

Status Connection::keep_context(ibv_context* context) {
  if (context == nullptr) {
    return {Code::kUnsupported, "no RDMA device has the address " + local_.text() +
                                    " ('rdma link' lists devices and their interfaces, "
                                    "RCUDA_VERBS_DEVICE chooses one)"};
  }
  if (context_ == nullptr) {
    context_ = context;
    pd_.reset(ibv_alloc_pd(context));
    if (!pd_) return failed("ibv_alloc_pd");
    ibv_device_attr attributes{};
    if (ibv_query_device(context, &attributes) == 0) {
      read_depth_ = static_cast<uint8_t>(
          std::clamp(std::min(attributes.max_qp_rd_atom, attributes.max_qp_init_rd_atom), 1,
                     static_cast<int>(kMaxReads)));
    }
  }
  if (context_ == context) return {};
  return {Code::kUnsupported, std::string("queue pairs of one session use two RDMA devices, ") +
                                  ibv_get_device_name(context_->device) + " and " +
                                  ibv_get_device_name(context->device) +
                                  ": choose one with RCUDA_VERBS_DEVICE"};
}

Status Connection::open_server(const Address& local) {
  local_ = local;
  RCUDA_RETURN_IF_ERROR(create_id(&listen_));
  if (rdma_bind_addr(listen_.get(), local_.get()) != 0 && errno != ENODEV &&
      errno != EADDRNOTAVAIL) {
    return failed("rdma_bind_addr");
  }
  RCUDA_RETURN_IF_ERROR(keep_context(listen_->verbs));
  if (rdma_listen(listen_.get(), 64) != 0) return failed("rdma_listen");
  return {};
}

uint16_t Connection::port() const { return ntohs(rdma_get_src_port(listen_.get())); }

Result<rdma_cm_event*> Connection::next_event(const Patience& patience) {
  short watched = POLLIN | POLLRDHUP;
  while (true) {
    rdma_cm_event* event = nullptr;
    if (rdma_get_cm_event(events_.get(), &event) == 0) return event;
    if (errno != EAGAIN && errno != EINTR) return failed("rdma_get_cm_event");
    pollfd entries[] = {{events_->fd, POLLIN, 0}, {patience.control.fd(), watched, 0}};
    if (::poll(entries, std::size(entries), poll_timeout_ms(patience.deadline)) == 0) {
      return Status{Code::kTimeout,
                    std::string("the peer did not connect its queue pairs in time") + kTestByHand};
    }
    if (entries[1].revents == 0 || entries[0].revents != 0) continue;
    // If the peer has sent ready, it has connected all queue pairs: continue. If the peer has
    // failed, receive_ready() returns the reason that the peer has sent.
    if (watched != POLLRDHUP && ready_has_come(patience.control)) {
      watched = POLLRDHUP;
      continue;
    }
    RCUDA_RETURN_IF_ERROR(receive_ready(patience.control, patience.deadline));
    return Status{Code::kUnavailable,
                  "the peer closed the control connection while queue pairs were being connected; "
                  "see its log"};
  }
}

Status Connection::expect(rdma_cm_event_type wanted, const Patience& patience) {
  RCUDA_ASSIGN_OR_RETURN(rdma_cm_event * event, next_event(patience));
  Status status;
  if (event->event != wanted) {
    status = event_problem(*event, "RDMA connection to " + server_.text() + " failed");
  }
  rdma_ack_cm_event(event);
  return status;
}

Status Connection::resolve(const Address& local, const Address& server, const Patience& patience,
                           CmId* id) {
  RCUDA_RETURN_IF_ERROR(create_id(id));
  Address from = local;
  Address to = server;
  // Binds the source address. Otherwise, if `server` is an address of this host, rdma_cm would use
  // the device of that address.
  if (rdma_resolve_addr(id->get(), from.get(), to.get(), kResolveMs) != 0) {
    if (errno == ENODEV || errno == EADDRNOTAVAIL) return keep_context(nullptr);
    return failed("rdma_resolve_addr");
  }
  RCUDA_RETURN_IF_ERROR(expect(RDMA_CM_EVENT_ADDR_RESOLVED, patience));
  RCUDA_RETURN_IF_ERROR(keep_context((*id)->verbs));
  if (rdma_resolve_route(id->get(), kResolveMs) != 0) return failed("rdma_resolve_route");
  return expect(RDMA_CM_EVENT_ROUTE_RESOLVED, patience);
}

Status Connection::open_client(const Address& local, const Address& server,
                               const Patience& patience) {
  local_ = local;
  server_ = server;
  ids_.resize(1);
  return resolve(local_, server_, patience, &ids_[0]);
}

Status Connection::create_qp(rdma_cm_id* id, const QueuePairPlan& plan, size_t index) {
  ibv_qp_init_attr attributes{};
  attributes.qp_context = plan.owner;
  attributes.qp_type = IBV_QPT_RC;
  attributes.send_cq = plan.sends;
  attributes.recv_cq = plan.receives;
  attributes.cap.max_send_wr = plan.sizes.sends;
  attributes.cap.max_recv_wr = std::max(plan.sizes.receives, 1u);  // some adapters refuse 0
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_recv_sge = 1;
  attributes.cap.max_inline_data = plan.sizes.inline_bytes;
  while (rdma_create_qp(id, pd_.get(), &attributes) != 0) {
    // A device that cannot send this size inline refuses the queue pair: try half the size.
    if (errno != EINVAL || attributes.cap.max_inline_data == 0) return failed("rdma_create_qp");
    attributes.cap.max_inline_data /= 2;
  }
  inline_bytes_[index] = attributes.cap.max_inline_data;
  for (uint32_t i = 0; i < plan.sizes.receives; ++i) {
    ibv_recv_wr receive{};  // immediate data needs no buffer
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_post_recv(id->qp, &receive, &bad); error != 0) {
      return Status::from_errno(error, "RDMA connection: posting a receive (ibv_post_recv) failed");
    }
  }
  return {};
}

rdma_conn_param Connection::parameters(const void* data, size_t bytes) const {
  rdma_conn_param parameters{};
  parameters.private_data = data;
  parameters.private_data_len = static_cast<uint8_t>(bytes);
  parameters.responder_resources = read_depth_;
  parameters.initiator_depth = read_depth_;
  parameters.retry_count = kRetries;
  // 7: retry without limit while the peer has no posted receive.
  parameters.rnr_retry_count = 7;
  return parameters;
}

Status Connection::connect_client(const Token& token, const std::vector<QueuePairPlan>& plans,
                                  const Patience& patience) {
  ids_.resize(plans.size());
  inline_bytes_.resize(plans.size());
  for (size_t i = 0; i < plans.size(); ++i) {
    if (i != 0) RCUDA_RETURN_IF_ERROR(resolve(local_, server_, patience, &ids_[i]));
    RCUDA_RETURN_IF_ERROR(create_qp(ids_[i].get(), plans[i], i));
    set_ack_timeout(ids_[i].get());
    const PrivateData data{token, static_cast<uint32_t>(i)};
    rdma_conn_param connect = parameters(&data, sizeof data);
    if (rdma_connect(ids_[i].get(), &connect) != 0) return failed("rdma_connect");
    RCUDA_RETURN_IF_ERROR(expect(RDMA_CM_EVENT_ESTABLISHED, patience));
  }
  return {};
}

Status Connection::accept(rdma_cm_event* event, const Token& token,
                          const std::vector<QueuePairPlan>& plans) {
  CmId id(event->id);
  PrivateData data{};
  const rdma_conn_param& asked = event->param.conn;
  if (asked.private_data_len >= sizeof data) {
    std::memcpy(&data, asked.private_data, sizeof data);
  }
  rdma_ack_cm_event(event);  // frees the event
  if (data.token != token || data.index >= plans.size() || ids_[data.index]) {
    rdma_reject(id.get(), nullptr, 0);
    return {};  // not an error: the caller waits for the next request
  }
  RCUDA_RETURN_IF_ERROR(keep_context(id->verbs));
  RCUDA_RETURN_IF_ERROR(create_qp(id.get(), plans[data.index], data.index));
  set_ack_timeout(id.get());
  rdma_conn_param connect = parameters(nullptr, 0);
  if (rdma_accept(id.get(), &connect) != 0) return failed("rdma_accept");
  ids_[data.index] = std::move(id);
  return {};
}

Status Connection::connect_server(const Token& token, const std::vector<QueuePairPlan>& plans,
                                  const Patience& patience) {
  ids_.resize(plans.size());
  inline_bytes_.resize(plans.size());
  for (size_t established = 0; established < plans.size();) {
    RCUDA_ASSIGN_OR_RETURN(rdma_cm_event * event, next_event(patience));
    switch (event->event) {
      case RDMA_CM_EVENT_CONNECT_REQUEST:
        RCUDA_RETURN_IF_ERROR(accept(event, token, plans));
        continue;  // accept() has acknowledged it
      case RDMA_CM_EVENT_ESTABLISHED:
        ++established;
        break;
      case RDMA_CM_EVENT_CONNECT_ERROR:
      case RDMA_CM_EVENT_DISCONNECTED:
      case RDMA_CM_EVENT_DEVICE_REMOVAL: {
        Status problem = event_problem(*event, "the peer's RDMA connection failed");
        rdma_ack_cm_event(event);
        return problem;
      }
      default:
        break;
    }
    rdma_ack_cm_event(event);
  }
  listen_.reset();
  return {};
}

void Connection::flush() {
  for (const CmId& id : ids_) {
    if (!id || id->qp == nullptr) continue;
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    ibv_modify_qp(id->qp, &attributes, IBV_QP_STATE);
  }
}

}  // namespace rcuda::transport::verbs
