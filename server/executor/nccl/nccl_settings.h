// NcclSettings: a worker's settings for NCCL. Plain values.
#pragma once

#include <string>

namespace rcuda::server {

struct NcclSettings {
  std::string library = "auto";  // as for load_nccl()
  std::string unavailable;       // why the session gets no NCCL; empty: it gets one
  // NCCL_HOSTID, unless the environment sets it: equal in workers that can open each other's GPUs.
  // Empty: NCCL chooses.
  std::string host_id;
};

}  // namespace rcuda::server
