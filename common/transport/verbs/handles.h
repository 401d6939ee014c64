// Owning handles for objects of libibverbs and librdmacm. The owner must destroy queue pairs before
// completion queues, completion queues before completion channels, and registrations before the
// protection domain.
#pragma once

#include <memory>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

namespace rcuda::transport::verbs {

template <auto destroy>
struct Destroy {
  template <typename T>
  void operator()(T* handle) const {
    destroy(handle);
  }
};

using Pd = std::unique_ptr<ibv_pd, Destroy<ibv_dealloc_pd>>;
using Mr = std::unique_ptr<ibv_mr, Destroy<ibv_dereg_mr>>;
using Cq = std::unique_ptr<ibv_cq, Destroy<ibv_destroy_cq>>;
using CompChannel = std::unique_ptr<ibv_comp_channel, Destroy<ibv_destroy_comp_channel>>;
using EventChannel = std::unique_ptr<rdma_event_channel, Destroy<rdma_destroy_event_channel>>;

inline void destroy_id(rdma_cm_id* id) {
  if (id->qp != nullptr) rdma_destroy_qp(id);
  rdma_destroy_id(id);
}
using CmId = std::unique_ptr<rdma_cm_id, Destroy<destroy_id>>;

}  // namespace rcuda::transport::verbs
