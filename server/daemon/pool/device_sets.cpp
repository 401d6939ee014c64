#include "server/daemon/pool/device_sets.h"

#include <algorithm>

#include <unistd.h>

namespace rcuda::server {
namespace {

constexpr size_t kMostRecent = 64;

bool exists(const char* path) { return ::access(path, F_OK) == 0; }

}  // namespace

DeviceSets::Machine DeviceSets::this_machine() {
  return {::geteuid() == 0, exists(kNvidiaDriver),
          exists("/dev/nvidiactl") && exists("/dev/nvidia-uvm")};
}

DeviceSets::DeviceSets(const Settings& settings, const Machine& machine)
    : settings_(settings),
      hides_nodes_(settings.device_isolation.get() != "commands" && machine.root) {
  const bool some = !settings.devices.get().empty();
  known_ = !per_session() && !(hides_nodes_ && machine.nvidia && (some || !machine.shared_nodes));
}

bool DeviceSets::per_session() const {
  return settings_.device_isolation.get() == kIsolateSessions;
}

void DeviceSets::learn(const WorkerReady& scout) {
  known_ = true;
  if (!per_session() && settings_.devices.get().empty()) return;
  devices_.clear();
  recent_.clear();
  for (size_t i = 0; i < scout.devices.size() && i < scout.identities.size(); ++i) {
    const WorkerReady::Identity& identity = scout.identities[i];
    devices_.push_back({scout.devices[i].ordinal, identity.uuid, node_of(identity.pci_bus_id)});
    recent_.push_back({scout.devices[i].ordinal});
  }
}

DeviceSets::Key DeviceSets::key_of(const std::vector<uint32_t>& devices) const {
  std::vector<uint32_t> key;
  if (!per_session()) return key;
  key = devices;
  std::sort(key.begin(), key.end());
  key.erase(std::unique(key.begin(), key.end()), key.end());
  return key;
}

std::vector<DeviceSets::Key> DeviceSets::wanted(size_t idle) const {
  std::vector<Key> keys;
  if (idle == 0) return keys;
  if (!known_) return {Key()};
  if (!per_session()) return std::vector<Key>(idle, Key(std::vector<uint32_t>()));
  while (keys.size() < idle && !recent_.empty()) {
    for (const std::vector<uint32_t>& key : recent_) {
      if (keys.size() < idle) keys.emplace_back(key);
    }
  }
  return keys;
}

void DeviceSets::used(const Key& key) {
  if (!per_session() || !key) return;
  recent_.remove(*key);
  recent_.push_front(*key);
  if (recent_.size() > kMostRecent) recent_.pop_back();
}

std::vector<std::string> DeviceSets::environment(const Key& key) const {
  if (!key || (!hides_nodes_ && !per_session())) return {};
  DeviceScope scope;
  std::string visible;
  for (const DeviceScope::Device& device : devices_) {
    if (!key->empty() && !std::binary_search(key->begin(), key->end(), device.ordinal)) continue;
    scope.devices.push_back(device);
    visible += (visible.empty() ? "" : ",") + device.uuid;
  }
  std::vector<std::string> lines = {std::string(kScopeVariable) + "=" + text_of(scope)};
  // Replaces the administrator's variable: its numbers count all devices of the machine, but this
  // worker sees only some of them.
  if (!visible.empty()) lines.push_back("CUDA_VISIBLE_DEVICES=" + visible);
  return lines;
}

}  // namespace rcuda::server
