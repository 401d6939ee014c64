// Reads the list of remote GPUs from the environment.
//
//   RCUDA_DEVICES=host[@port]:gpu[,host[@port]:gpu ...]    e.g. node1:0,node1:1,node2@9000:0-3
//   RCUDA_DEVICE_0=node1:0 RCUDA_DEVICE_1=node2@9000:0     numbered variables
//
// An entry:
// - The GPU is a number, a range of numbers, or a UUID or its beginning (GPU-8f2c).
// - A colon may replace the at sign: node2:9000:0. An IPv6 address needs brackets:
//   [fe80::1]@8308:0.
// - The entry may begin with a medium: shm:node1:0, tcp:node1:0, verbs:node1:0.
// - The host "local" is this machine, over shared memory regardless of RCUDA_TRANSPORT:
//   local:0,node1:0.
//
// Numbered variables are for container tools that add each GPU separately (rcuda-run --cdi). The
// pool consists of the variables that are set, in the order of their numbers. With
// RCUDA_DEVICE_COUNT=2, RCUDA_DEVICE_0 and RCUDA_DEVICE_1 must both be set.
//
// The functions are pure. An error names the entry and shows the right form.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/messages/message_io.h"
#include "common/transport/media.h"

namespace rcuda::client {

struct DeviceAddress {
  const transport::Medium* medium = nullptr;  // null: auto
  std::string host;
  uint16_t port = wire::kDefaultPort;
  uint32_t gpu = 0;
  std::string uuid;  // not empty: names the GPU, whose number is not known yet (resolve_uuids())
};

using Environment = std::function<const char*(const char* name)>;  // like secure_getenv()

// Parses one entry. An entry that names several GPUs is an error.
Result<DeviceAddress> parse_device(const std::string& text);
// Returns the text of a device, which parse_device() accepts.
std::string device_text(const DeviceAddress& device);
// Returns "RCUDA_DEVICE_<number>".
std::string numbered_variable(uint32_t number);
// Returns the devices in the application's order. Returns kNotFound if no variable is set.
Result<std::vector<DeviceAddress>> devices_from(const Environment& environment);

// visible_devices() returns the devices of the pool that CUDA_VISIBLE_DEVICES selects: by their
// positions in the pool, or by their UUIDs. `uuids` returns one UUID for each device of the pool;
// it is called only if the variable has UUIDs.
using PoolUuids = std::function<Result<std::vector<std::string>>()>;
struct VisibleSelection {
  std::vector<DeviceAddress> devices;
  std::string problem;       // why the list ends early; empty if it is complete
  bool named_twice = false;  // a device is named twice: the list is invalid, no device is visible
};
Result<VisibleSelection> visible_devices(const std::vector<DeviceAddress>& pool,
                                         const Environment& environment, const PoolUuids& uuids);

// One server and the devices requested from it.
struct ServerDevices {
  const transport::Medium* medium = nullptr;  // null: auto
  std::string host;
  uint16_t port = 0;
  std::vector<uint32_t> gpus;      // in the application's order
  std::vector<uint32_t> ordinals;  // the application's ordinal of each GPU
};
// Groups by (medium, host, port), in order of first appearance. A GPU that is named twice in a
// group is an error. The number of each GPU must be known (resolve_uuids()).
Result<std::vector<ServerDevices>> group_by_server(const std::vector<DeviceAddress>& devices);

}  // namespace rcuda::client
