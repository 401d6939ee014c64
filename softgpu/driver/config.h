// Configuration: the properties of the virtual machine, read once from the environment by cuInit.
//
//   SOFTGPU_DEVICES             number of devices, 0 to 16; default 1
//   SOFTGPU_NVLINKS             NVLinks that NVML reports for each device, up to 4; default 0
//   SOFTGPU_NVLINK_END          the kind of their other end, an nvmlIntNvLinkDeviceType_t: 0 (GPU)
//                               to 2 (switch); default 2
//   SOFTGPU_MEMORY              memory of each device: bytes, or with K, M, G or T; default 16G
//   SOFTGPU_DRIVER_VERSION      the CUDA version that cuDriverGetVersion reports: 12040 to 99990;
//                               default that of the headers. Functions of later versions are
//                               missing (api/exports/driver_version.h)
//   SOFTGPU_NODE                a name that makes this node's devices differ from those of another
//                               node on the same machine; default none
//   SOFTGPU_PCIE_GBPS           rate of each device's host link, each direction, in 10^9 bytes/s;
//                               default: not modelled
//   SOFTGPU_PCIE_LATENCY_US     time added to every copy over the host link; default 0
//   SOFTGPU_PEER_GBPS           rate of copies from a device to other devices, in 10^9 bytes/s;
//                               default: not modelled
//   SOFTGPU_CONNECTIONS         queues that a device's streams share, up to 32; default 0: each
//                               stream has its own
//   SOFTGPU_THREADS             threads that run blocks, for all devices together, up to 1024;
//                               default 0: one per core
//   SOFTGPU_INIT_MS             duration of cuInit, up to 60000; default 0
//   SOFTGPU_CONTEXT_MS          duration of making a context; all processes of the machine take
//                               turns (start_cost.h); default 0
//   SOFTGPU_CONTEXT_END_MS      duration of ending a context, likewise; default 0
//   SOFTGPU_CONTEXT_MEMORY      device memory of each context: bytes, or with K, M, G or T;
//                               default 0
//   SOFTGPU_MPS                 1: the devices report that NVIDIA's multi-process service serves
//                               them, and a process has CUDA_MPS_ACTIVE_THREAD_PERCENTAGE percent
//                               of their multiprocessors; default 0
//   SOFTGPU_MIG                 1: each device is a part of a GPU that has seven times its memory;
//                               default 0
//   SOFTGPU_NO_ROOM             a path: while the file exists, cuMemCreate finds no device memory,
//                               as if another process had it
//   SOFTGPU_SHARED_MEMORY       a file: processes that name the same file share the memory of their
//                               devices (shared_account.h); default: each process has its own
//   SOFTGPU_COPY_LOG            file that gets a line per copy over a link (copy_log.h)
//   SOFTGPU_LOG                 trace, debug, info, warn (default), error or off
//
// An absent setting has its default. A malformed setting is an error that names it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include <cuda.h>

#include "common/base/status.h"
#include "common/cuda/driver_variables.h"

namespace softgpu::driver {

inline constexpr uint32_t kComputeCapability = 90;  // 9.0, as an H200

struct Configuration {
  int devices = 1;
  int driver_version = CUDA_VERSION;
  size_t memory_bytes = size_t{16} << 30;
  double pcie_bytes_per_ns = 0;  // 10^9 bytes/s are one byte/ns; 0: not paced
  int64_t pcie_latency_ns = 0;
  double peer_bytes_per_ns = 0;
  int connections = 0;  // 0: not shared
  int threads = 0;      // 0: one per core
  int nvlinks = 0;      // per device, as NVML reports them
  int nvlink_end = 2;   // the kind of the NVLinks' other end
  int mps = 0;          // 1: MPS serves the devices
  int mps_percent = 100;
  int mig = 0;  // 1: each device is a part of a GPU
  rcuda::cuda::DriverVariables variables;
  std::chrono::milliseconds init_time{0};
  std::chrono::milliseconds context_time{0}, context_end_time{0};
  size_t context_bytes = 0;
  std::string node;
  std::string no_room;
  std::string shared_memory;
  std::string copy_log;
};

rcuda::Result<Configuration> read_configuration();

// The UUID of a device, which is equal in all processes of this machine and differs between
// machines, nodes and devices. Reads the machine's id.
CUuuid device_uuid(const Configuration& configuration, int ordinal);

// The name in /proc of the files with a device's memory. softgpu's NVML finds a process's use of
// the device by this name.
std::string device_file_name(int ordinal);

// SOFTGPU_DRIVER_VERSION alone, because programs query the version before cuInit. A malformed
// setting gives the default here; cuInit reports it.
int driver_version();

// The configuration that initialize() has accepted; the defaults before that.
const Configuration& configuration();
void set_configuration(const Configuration& configuration);

}  // namespace softgpu::driver
