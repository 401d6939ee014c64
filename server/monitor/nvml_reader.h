// NvmlReader: reads the figures of GPUs from the NVML of this machine's driver. NVML is opened at
// run time, because a machine may lack it.
//
// Threads: one at a time. Blocking: as NVML, which calls the kernel's driver: milliseconds; seconds
// for the first call while no program uses the GPU; longer with a broken GPU. Errors: open() says
// why there is no NVML. Figures that NVML does not report stay unknown.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/messages/gpu_report.h"

namespace rcuda::server {

// A device as the CUDA driver names it.
struct GpuName {
  std::string pci_bus_id;
  std::string uuid;  // common/cuda/uuid_text.h
  friend bool operator==(const GpuName&, const GpuName&) = default;
};

// NVML's report, with the GPUs in the order of the request.
struct GpuSample {
  std::string driver_version;
  struct Gpu {
    bool known = false;  // NVML knows the GPU
    // The members that NVML reports: figures, texts, paths, PCI numbers, and the memory of the
    // device (its size and total use). find_adapters() adds the nearest adapter. The other members
    // are empty.
    wire::GpuReport::Gpu told;
    // A size that NVML does not know (NVML_VALUE_NOT_AVAILABLE).
    static constexpr uint64_t kNotAvailable = ~uint64_t{0};
    std::map<uint32_t, uint64_t> memory_of;  // bytes in use, by process id
  };
  std::vector<Gpu> gpus;
};

class NvmlReader {
 public:
  // `driver_path`: the file of the driver in use. Opens the NVML in the same folder, which is the
  // driver's own. If it is missing, opens the NVML that the loader finds.
  static Result<std::unique_ptr<NvmlReader>> open(const std::string& driver_path);
  ~NvmlReader();
  NvmlReader(const NvmlReader&) = delete;
  NvmlReader& operator=(const NvmlReader&) = delete;

  // For a part of a GPU (MIG), the memory, processes and figures are the part's own; figures that
  // NVML reports only for the whole GPU are unknown.
  GpuSample read(const std::vector<GpuName>& names) const;

 private:
  struct Functions;
  NvmlReader();

  std::unique_ptr<Functions> nvml_;
};

}  // namespace rcuda::server
