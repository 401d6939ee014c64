// DeviceSets: the sets of devices for which workers are started (RCUDA_SERVER_DEVICE_ISOLATION),
// and the environment that restricts a worker to its set.
//
//   commands  every worker has all devices and sees the machine's /dev
//   server    every worker has all devices that the server offers. If the server runs as root, a
//             worker sees only the nodes of these devices
//   session   a worker has the devices of one session. Idle workers are kept for the sets of the
//             latest sessions, at first for single devices
// The daemon does not use CUDA. If it must know the devices first, the first worker is a scout: it
// sees all devices, reports them, and serves no session.
// Threads: the daemon's. Blocking: for files of /proc and /dev. Errors: none.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "server/protocol/settings.h"
#include "server/protocol/worker_messages.h"
#include "server/sandbox/device_scope.h"

namespace rcuda::server {

class DeviceSets {
 public:
  // The devices of a worker, in ascending order; empty: all that the server offers. None: a scout.
  using Key = std::optional<std::vector<uint32_t>>;

  struct Machine {
    bool root = false;          // this process may hide nodes from its workers
    bool nvidia = false;        // the kernel has NVIDIA's driver
    bool shared_nodes = false;  // nvidiactl and nvidia-uvm are there; the driver makes them when it
                                // is first used after the machine's start
  };
  static Machine this_machine();

  explicit DeviceSets(const Settings& settings, const Machine& machine = this_machine());

  bool per_session() const;
  bool needs_scout() const { return !known_; }
  void learn(const WorkerReady& scout);

  // The key of the worker that a session needs.
  Key key_of(const std::vector<uint32_t>& devices) const;
  // The keys of the idle workers that are wanted.
  std::vector<Key> wanted(size_t idle) const;
  void used(const Key& key);
  // Variables for the environment of a worker, as NAME=value.
  std::vector<std::string> environment(const Key& key) const;

 private:
  const Settings& settings_;
  const bool hides_nodes_;  // workers get a /dev of their own
  bool known_;
  std::vector<DeviceScope::Device> devices_;  // empty: all
  std::list<std::vector<uint32_t>> recent_;   // keys of sessions, latest first
};

}  // namespace rcuda::server
