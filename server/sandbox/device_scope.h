// DeviceScope: the devices that one worker process may use, chosen before its driver starts.
//
// The daemon passes the scope to the worker in its environment (kScopeVariable, and
// CUDA_VISIBLE_DEVICES for the driver). The worker finds the devices by their UUIDs, because a
// driver numbers only the devices that it sees. A worker without a scope uses the devices of the
// server's settings.
// Any thread. Blocking: node_of(), nvidia_nodes() and gpu_nodes(), to read files and folders.
// Errors: parse_scope() returns kInvalidArgument.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace rcuda::server {

inline constexpr char kScopeVariable[] = "RCUDA_WORKER_DEVICES";

struct DeviceScope {
  struct Device {
    uint32_t ordinal = 0;  // the server's number of the device
    std::string uuid;      // "GPU-5c6b..."
    std::string node;      // "nvidia3", in /dev; empty: the device has none
  };
  std::vector<Device> devices;
};

std::string text_of(const DeviceScope& scope);
Result<DeviceScope> parse_scope(const std::string& text);

inline constexpr char kNvidiaDriver[] = "/proc/driver/nvidia";
// The device node of a GPU, as NVIDIA's kernel driver reports it below `driver`. Empty if the
// driver knows no such GPU.
std::string node_of(const std::string& pci_bus_id, const std::string& driver = kNvidiaDriver);
// The nodes of NVIDIA's kernel driver in a folder of device nodes: nvidiactl, nvidia-uvm, nvidia0,
// ...
std::vector<std::string> nvidia_nodes(const std::string& folder = "/dev");
// The nodes of nvidia_nodes() that belong to single GPUs: nvidia0, nvidia1, ...
std::vector<std::string> gpu_nodes(const std::string& folder = "/dev");
bool is_gpu_node(const std::string& name);

// A /dev of the worker's own, which holds only the device nodes that the worker may use.
//
// A worker of root makes it in a mount namespace of its own before the driver starts. The worker
// cannot change this /dev afterwards: /dev is mounted read-only, and with its session the worker
// loses the right to mount (isolation.h). /dev holds the nodes that programs need (null, zero,
// random, shm), the RDMA adapters, the nodes that all GPUs share, and the nodes of the named GPUs.
// Rejected: a list of devices in the worker's cgroup. Version 1 of cgroups has files for this list,
// which machines with version 2 lack. In version 2 the list is a BPF program, which only a process
// with CAP_BPF may attach, and containers often forbid this.
// Threads: one, before others start. Blocking: no. Errors: kSystem with the call that failed. After
// an error, /dev is as before.
//
// `gpus`: nodes such as nvidia3.
Status make_private_dev(const std::vector<std::string>& gpus);

}  // namespace rcuda::server
