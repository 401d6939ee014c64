// Connection: the queue pairs between two sides, made with rdma_cm.
//
// The server listens on a port for this session only. Over the control socket it sends the client
// the address, the port and a random token. The client connects queue pair 0 (commands) and 1 ... n
// (transfers), each with the token and its index in the private data. All other connection requests
// are rejected. Each side calls its connect_*(), which blocks until the deadline at most, or until
// the peer closes the control socket.
//
// After that, events() delivers disconnections. One thread of the Link reads them.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/transport/verbs/device.h"
#include "common/transport/verbs/handles.h"

namespace rcuda::transport::verbs {

using Token = std::array<uint8_t, 16>;
using Deadline = std::chrono::steady_clock::time_point;

// Limits a wait for the peer: it ends at the deadline, or when the peer closes the control socket.
struct Patience {
  const Socket& control;
  Deadline deadline;
};

// How often an unanswered request is retried, and how long each try waits for its answer: 4.096 us
// * 2^kAckTimeout, 1.07 s. All tries together last long enough for a switch to find another path,
// and end before the timeout of a silent peer (LinkOptions::peer_timeout). rdma_cm's default
// depends on the kernel version. Not 7 retries: soft-RoCE retries without limit at 7.
inline constexpr uint8_t kRetries = 6;
inline constexpr uint8_t kAckTimeout = 18;
// A queue pair fails after this time without an answer. (Adapters may take four times as long.)
inline constexpr std::chrono::seconds kGivesUpAfter{
    (kRetries + 1) * (4096ull << kAckTimeout) / 1'000'000'000 + 1};

struct QueueSizes {
  uint32_t sends = 256;
  uint32_t receives = 16;
  uint32_t inline_bytes = 0;
};

// The completion queues and sizes of one queue pair.
struct QueuePairPlan {
  ibv_cq* sends = nullptr;
  ibv_cq* receives = nullptr;
  QueueSizes sizes;
  void* owner = nullptr;  // the queue pair's qp_context, by which AdapterEvents finds the Link
};

class Connection {
 public:
  Connection() = default;
  Connection(Connection&&) = default;
  Connection& operator=(Connection&&) = default;
  ~Connection();

  // The server's first step: finds the device of `local` and listens. The client needs port().
  Status open_server(const Address& local);
  // The client's first step: resolves the address `server`, with the source address `local`. This
  // also finds the device. Keeps the resolved id for queue pair 0.
  Status open_client(const Address& local, const Address& server, const Patience& patience);

  ibv_context* context() const { return context_; }
  ibv_pd* pd() const { return pd_.get(); }
  rdma_cm_id& first_id() const { return listen_ ? *listen_ : *ids_[0]; }
  const Address& local() const { return local_; }
  uint16_t port() const;

  // Connect the queue pairs, with one plan for each. The receives of a queue pair are posted before
  // the queue pair is connected.
  Status connect_server(const Token& token, const std::vector<QueuePairPlan>& plans,
                        const Patience& patience);
  Status connect_client(const Token& token, const std::vector<QueuePairPlan>& plans,
                        const Patience& patience);

  ibv_qp* qp(size_t index) const { return ids_[index]->qp; }
  size_t size() const { return ids_.size(); }
  uint32_t inline_bytes(size_t index) const { return inline_bytes_[index]; }
  rdma_event_channel* events() const { return events_.get(); }

  // Puts every queue pair into the error state; posted work requests complete as flushed.
  void flush();
  void destroy_queue_pairs();

 private:
  Status keep_context(ibv_context* context);
  Status create_id(CmId* id);
  Status create_qp(rdma_cm_id* id, const QueuePairPlan& plan, size_t index);
  Status resolve(const Address& local, const Address& server, const Patience& patience, CmId* id);
  // Waits for the next event. The caller acknowledges it.
  Result<rdma_cm_event*> next_event(const Patience& patience);
  Status expect(rdma_cm_event_type wanted, const Patience& patience);
  Status accept(rdma_cm_event* event, const Token& token, const std::vector<QueuePairPlan>& plans);
  rdma_conn_param parameters(const void* data, size_t bytes) const;

  EventChannel events_;
  Pd pd_;
  CmId listen_;
  std::vector<CmId> ids_;  // destroyed before the members above
  std::vector<uint32_t> inline_bytes_;
  ibv_context* context_ = nullptr;  // owned by rdma_cm, shared by the process
  uint8_t read_depth_ = 1;
  Address local_;
  Address server_;
};

}  // namespace rcuda::transport::verbs
