#include "common/transport/verbs/loopback.h"

#include <cerrno>
#include <string>
#include <thread>

#include "common/transport/verbs/connection.h"

namespace rcuda::transport::verbs {
namespace {

using Clock = std::chrono::steady_clock;
using Qp = std::unique_ptr<ibv_qp, Destroy<ibv_destroy_qp>>;

Status change(ibv_qp* qp, ibv_qp_attr& attributes, int mask, const char* what) {
  const int error = ibv_modify_qp(qp, &attributes, mask);
  return error == 0 ? Status() : Status::from_errno(error, what);
}

Status connect_with_itself(ibv_qp* qp, const rdma_cm_id& id, const Address& local,
                           const ibv_port_attr& port) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = id.port_num;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  RCUDA_RETURN_IF_ERROR(change(qp, attributes,
                               IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                               "setting a queue pair to INIT"));

  attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = port.active_mtu;
  attributes.dest_qp_num = qp->qp_num;
  attributes.max_dest_rd_atomic = 1;
  attributes.min_rnr_timer = 12;
  attributes.ah_attr.port_num = id.port_num;
  attributes.ah_attr.dlid = port.lid;
  if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
    const int index = roce_gid_index(id.verbs, id.port_num, local);
    if (index < 0) {
      return {Code::kNotFound, "this host's address " + local.text() + " has no RoCE v2 GID"};
    }
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.grh.hop_limit = 1;
    attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(index);
    if (ibv_query_gid(id.verbs, id.port_num, index, &attributes.ah_attr.grh.dgid) != 0) {
      return Status::from_errno(errno, "reading GID " + std::to_string(index) + " (ibv_query_gid)");
    }
  }
  RCUDA_RETURN_IF_ERROR(change(qp, attributes,
                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                   IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                               "setting a queue pair to RTR"));

  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = 14;  // 67 ms, which is enough because no packet leaves the adapter
  attributes.retry_cnt = kRetries;
  attributes.rnr_retry = 7;
  attributes.max_rd_atomic = 1;
  return change(qp, attributes,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                "setting a queue pair to RTS");
}

}  // namespace

Status loop_back(ibv_pd* pd, const rdma_cm_id& id, const Address& local, Span to, Span from,
                 size_t bytes, Clock::time_point deadline) {
  ibv_port_attr port{};
  if (const int error = ibv_query_port(id.verbs, id.port_num, &port); error != 0) {
    return Status::from_errno(error, "reading the state of the adapter's port (ibv_query_port)");
  }
  if (bytes == 0 || bytes > port.max_msg_sz) {
    return {Code::kInvalidArgument, "cannot test the adapter with " + std::to_string(bytes) +
                                        " bytes: a message of its port carries 1 to " +
                                        std::to_string(port.max_msg_sz) + " bytes"};
  }
  const Cq cq(ibv_create_cq(id.verbs, 4, nullptr, nullptr, 0));
  if (!cq) return Status::from_errno(errno, "a test of the adapter: ibv_create_cq failed");
  ibv_qp_init_attr wanted{};
  wanted.qp_type = IBV_QPT_RC;
  wanted.send_cq = wanted.recv_cq = cq.get();
  wanted.cap = {.max_send_wr = 1,
                .max_recv_wr = 1,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 0};
  const Qp qp(ibv_create_qp(pd, &wanted));
  if (!qp) return Status::from_errno(errno, "a test of the adapter: ibv_create_qp failed");
  RCUDA_RETURN_IF_ERROR(connect_with_itself(qp.get(), id, local, port)
                            .with_context("connecting the adapter to itself"));

  ibv_sge piece{from.address, static_cast<uint32_t>(bytes), from.mr->lkey};
  ibv_send_wr request{};
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = to.address;
  request.wr.rdma.rkey = to.mr->rkey;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(qp.get(), &request, &bad); error != 0) {
    return Status::from_errno(error, "a test of the adapter: ibv_post_send failed");
  }
  ibv_wc completion{};
  int count = 0;
  while ((count = ibv_poll_cq(cq.get(), 1, &completion)) == 0) {
    if (Clock::now() >= deadline) {
      return {Code::kTimeout, "the adapter's transfer to itself did not end in time"};
    }
    std::this_thread::yield();
  }
  if (count < 0) return Status::from_errno(-count, "a test of the adapter: ibv_poll_cq failed");
  if (completion.status == IBV_WC_SUCCESS) return {};
  return {Code::kSystem, std::string("the adapter's transfer to itself failed: ") +
                             ibv_wc_status_str(completion.status)};
}

}  // namespace rcuda::transport::verbs
