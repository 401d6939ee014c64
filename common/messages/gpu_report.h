// GpuReport: a server's report about its GPUs, for client/nvml. The client needs no session for it.
//
//   client -> daemon   after it has identified itself as for a StatusQuery: GpuQuery, empty body
//   daemon -> client   GpuReport, and the end of the connection; or Refusal
//
// Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/messages/forms.h"
#include "common/messages/message.h"

namespace rcuda::wire {

// The value of a figure that the server's NVML does not report.
inline constexpr uint64_t kUnknownFigure = ~uint64_t{0};

struct GpuReport {
  static constexpr char kName[] = "GPU report";
  static constexpr MessageType kForm = MessageType::kGpuReport;

  // A session on the GPU that the client may see.
  struct Process {
    std::string host;  // of the client
    uint32_t pid = 0;  // of the client's process
    uint64_t used_bytes = kUnknownFigure;
    uint64_t quota_bytes = 0;  // the session's smallest limit on this GPU; 0: no limit
  };
  // The path to another GPU of the report.
  struct Path {
    uint32_t ancestor = 0;             // nvmlGpuTopologyLevel_t
    std::vector<uint32_t> p2p_status;  // nvmlGpuP2PStatus_t, by nvmlGpuP2PCapsIndex_t
  };
  struct Gpu {
    uint32_t ordinal = 0;  // the server's number
    std::string name, uuid, pci_bus_id;
    uint32_t pci_device = 0, pci_subsystem = 0;
    // The memory of the GPU, with the use of all users. A client that has a quota and may not see
    // the sessions of others receives only total_bytes.
    uint64_t total_bytes = 0, used_bytes = kUnknownFigure, reserved_bytes = 0;
    // The memory that the client may use, and the part of it that is in use. 0: the client has no
    // quota below the GPU's memory.
    uint64_t quota_bytes = 0, quota_used_bytes = 0;
    std::vector<uint64_t> figures;   // by nvml::Figure; empty: the server has no NVML
    std::vector<std::string> texts;  // by nvml::Text; empty: unknown
    std::vector<Process> processes;
    std::vector<Path> paths;  // to each GPU of the report, this one included; empty: unknown
    // The RDMA adapter that is nearest by PCI, as in /sys/class/infiniband; empty: unknown.
    std::string adapter;
    uint32_t adapter_ancestor = 0;  // the ancestor of GPU and adapter, as Path::ancestor
  };
  std::string driver_version;  // "580.95.05"; empty: unknown
  uint32_t cuda_version = 0;   // 13000
  // nvml::layout() of the server. A client with another layout() ignores figures and texts.
  uint64_t layout = 0;
  std::string host;  // the kernel's boot id, equal for all servers of a machine; empty: unknown
  std::vector<Gpu> gpus;
};

extern template struct Codec<GpuReport>;

}  // namespace rcuda::wire
