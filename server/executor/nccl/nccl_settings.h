// NcclSettings: what the server's settings say about NCCL. Plain values.
#pragma once

#include <string>

namespace rcuda::server {

struct NcclSettings {
  std::string library = "auto";  // as for load_nccl()
  // NCCL_HOSTID, unless the environment has it: equal in workers that can open each other's GPUs.
  // Empty: NCCL's own.
  std::string host_id;
};

}  // namespace rcuda::server
