// The pool of remote GPUs, as the environment names it.
//
//   RCUDA_DEVICES=host[@port]:gpu[,host[@port]:gpu ...]    e.g. node1:0,node1:1,node2@9000:0
//   RCUDA_DEVICE_COUNT=2 RCUDA_DEVICE_0=node1:0 RCUDA_DEVICE_1=node2@9000:0   (the older form)
// A medium may stand in front: shm:node1:0, tcp:node1:0, verbs:node1:0. IPv6 addresses go in
// brackets: [fe80::1]@8308:0. Pure functions; errors name the entry and what it should look like.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/transport/media.h"
#include "common/wire/handshake.h"

namespace rcuda::client {

struct DeviceAddress {
  const transport::Medium* medium = nullptr;  // null: auto
  std::string host;
  uint16_t port = wire::kDefaultPort;
  uint32_t gpu = 0;
};

using Environment = std::function<const char*(const char* name)>;  // getenv's shape

Result<DeviceAddress> parse_device(const std::string& text);
// kNotFound when neither form is set. The order is the application's device order.
Result<std::vector<DeviceAddress>> devices_from(const Environment& environment);

// One server of the pool and the devices asked of it.
struct ServerDevices {
  const transport::Medium* medium = nullptr;  // null: auto
  std::string host;
  uint16_t port = 0;
  std::vector<uint32_t> gpus;      // in the application's order
  std::vector<uint32_t> ordinals;  // the application's ordinal of each
};
// Groups by (medium, host, port), in order of first appearance. A GPU named twice is an error.
Result<std::vector<ServerDevices>> group_by_server(const std::vector<DeviceAddress>& devices);

}  // namespace rcuda::client
