// The text fuzzer's work on one input. fuzz_replay_test runs it over fixed mutations, too. The
// first byte chooses the kind of the rest: texts that a user writes into the environment and into
// files. A text that is accepted must survive being written and read again; a text that is refused
// must give a reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "client/pool/device_list.h"
#include "common/base/unique_fd.h"
#include "common/config/settings.h"
#include "common/config/toml_file.h"
#include "common/messages/lease_messages.h"
#include "p2p/plan/settings.h"
#include "server/quota/rules.h"
#include "tests/fuzz/accepted.h"

namespace rcuda::fuzz {

inline void read_devices(const std::string& text, bool older_form) {
  std::map<std::string, std::string> variables{{"RCUDA_DEVICES", text}};
  if (older_form) {
    variables = {{"RCUDA_DEVICE_COUNT", text.substr(0, text.find('\n'))}};
    size_t at = text.find('\n');
    for (int i = 0; at != std::string::npos; ++i) {
      const size_t next = text.find('\n', at + 1);
      variables["RCUDA_DEVICE_" + std::to_string(i)] = text.substr(at + 1, next - at - 1);
      at = next;
    }
  }
  const auto devices = client::devices_from([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
  if (!accepted(devices)) return;
  size_t gpus = 0;
  const auto servers = client::group_by_server(*devices);
  if (!accepted(servers)) return;
  for (const client::ServerDevices& server : *servers) {
    must(!server.host.empty() && server.port != 0);
    must(server.gpus.size() == server.ordinals.size());
    gpus += server.gpus.size();
  }
  must(gpus == devices->size());
}

// One setting of every kind.
struct AllSettings {
  config::Registry registry{"FUZZ_"};
  config::String string{registry, "FUZZ_STRING", "", ""};
  config::Bool flag{registry, "FUZZ_FLAG", false, ""};
  config::Integer integer{registry, "FUZZ_INTEGER", 0, -5, 70'000, ""};
  config::Bytes bytes{registry, "FUZZ_BYTES", 0, 1, ""};
  config::Duration duration{registry, "FUZZ_DURATION", {}, ""};
  config::OrdinalList list{registry, "FUZZ_LIST", ""};
  config::Choice choice{registry, "FUZZ_CHOICE", {"one", "two"}, ""};
};

inline void read_settings(const std::string& text) {
  for (size_t i = 0; i < AllSettings().registry.settings().size(); ++i) {
    AllSettings settings;
    config::SettingBase& setting = *settings.registry.settings()[i];
    if (!setting.set(text, "--fuzz", "a fuzzer").ok()) continue;
    const std::string written = setting.text();
    must(setting.set(written, "--fuzz", "itself").ok() && setting.text() == written);
  }
}

inline void read_settings_file(const std::string& text) {
  const UniqueFd file(::memfd_create("fuzz.toml", MFD_CLOEXEC));
  must(file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  AllSettings settings;
  const Status loaded =
      config::load_toml_file(settings.registry, "/proc/self/fd/" + std::to_string(file.get()));
  must(loaded.ok() || !loaded.context().empty());
  (void)settings.registry.describe();
}

inline void read_limits(const std::string& text) {
  const UniqueFd file(::memfd_create("fuzz.toml", MFD_CLOEXEC));
  must(file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  const auto look_up = [](const std::string& name) -> Result<uint32_t> {
    if (name.empty()) return Status(Code::kNotFound, "nobody has no name");
    return static_cast<uint32_t>(name.front());
  };
  const auto rules =
      server::Rules::read("/proc/self/fd/" + std::to_string(file.get()), {look_up, look_up});
  if (!accepted(rules)) return;
  for (const char* const user : {"a", "b"}) {
    const server::UserRules all = rules->of(user[0], user, {'a', 'b'});
    must(all.session.limits.sm_percent <= 100 && all.groups.size() <= 2);
  }
}

inline void read_strategy(const std::string& text) {
  const size_t line = text.find('\n');
  (void)accepted(p2p::parse_planner_options(
      text.substr(0, line), line == std::string::npos ? "" : text.substr(line + 1)));
}

// RCUDA_LEASE: an accepted key must be written as the same text.
inline void read_lease_keys(const std::string& text) {
  const auto keys = wire::parse_lease_keys(text);
  if (!accepted(keys)) return;
  for (const wire::LeaseKey& key : *keys) {
    const std::string written = wire::format(key);
    const auto again = wire::parse_lease_keys(written);
    must(again.ok() && again->size() == 1 && wire::format(again->front()) == written);
  }
}

inline void fuzz_text(const uint8_t* data, size_t size) {
  if (size == 0 || size > (64u << 10)) return;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 7) {
    case 0:
      return read_devices(text, false);
    case 1:
      return read_devices(text, true);
    case 2:
      return read_settings(text);
    case 3:
      return read_settings_file(text);
    case 4:
      return read_strategy(text);
    case 5:
      return read_limits(text);
    case 6:
      return read_lease_keys(text);
  }
}

inline std::vector<std::string> text_corpus() {
  std::vector<std::string> corpus;
  const auto add = [&](char what, const char* text) { corpus.push_back(what + std::string(text)); };
  add(0, "node1:0,node1:1,node2@9000:0, tcp:node1:2,[fe80::1]@8308:0,verbs:[::1]:0");
  add(1, "2\nnode1:0\nnode2@9000:3");
  for (const char* value :
       {"text", "yes", "0", "-5", "70000", "64M", "2G", "80us", "1.5s", "250ms", "0,2,3", "two"}) {
    add(2, value);
  }
  add(3,
      "# a file\nstring = \"text\"\nflag = true\ninteger = 8308\nlist = [0, 1]\n"
      "choice = \"two\"\n[bytes]\n");
  add(3, "bytes = \"2G\"\nduration = \"80us\"\n");
  for (const char* strategy : {"v1", "v2b", "v4a", "hybrid", "auto", "paper", "v4b:100001x3"}) {
    add(4, (std::string(strategy) + "\nshm").c_str());
  }
  add(5,
      "[limits.session]\ndevice_memory = \"40G\"\nsm_percent = 50\nidle_time = \"30m\"\n"
      "[limits.user]\nsessions = 8\n[limits.users.a.session]\npriorities = 0\n");
  add(5, "[limits.groups.a]\nbandwidth = 1048576\ndevices = 2\n[limits.groups.b.session]\n");
  add(6,
      "node1=1a2b3c4d:000102030405060708090a0b0c0d0e0f,[fe80::1]@9000=1a2b3c4d:"
      "000102030405060708090a0b0c0d0e0f,1a2b3c4d:ffffffffffffffffffffffffffffffff");
  return corpus;
}

}  // namespace rcuda::fuzz
