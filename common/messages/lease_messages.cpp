#include "common/messages/lease_messages.h"

#include <algorithm>

#include "common/base/host_port.h"
#include "common/base/lower.h"
#include "common/identity/encoding.h"
#include "common/messages/message_codec.h"
#include "common/messages/message_io.h"
#include "common/messages/work_codec.h"

namespace rcuda::wire {
namespace {

constexpr uint32_t kMaxLeases = 10'000;
constexpr size_t kIdDigits = 8;

bool parse_key(std::string_view text, LeaseKey* key) {
  const size_t equals = text.find('=');
  if (equals != text.npos) {
    key->port = kDefaultPort;
    if (!parse_host_port(text.substr(0, equals), "@", &key->host, &key->port)) return false;
    key->host = lower(key->host);
    text.remove_prefix(equals + 1);
  }
  key->id = text.substr(0, kIdDigits);
  if (!is_lease_id(key->id)) return false;
  if (text.size() == kIdDigits) return true;
  return text[kIdDigits] == ':' && identity::from_hex(text.substr(kIdDigits + 1), key->secret);
}

}  // namespace

template <typename Visitor>
void fields(Visitor& visit, LeaseRequest& m) {
  static constexpr const char* kOperations[] = {"take", "extend", "revoke", "list"};
  visit.choice("operation", m.operation, kOperations);
  visit.string("id", m.id);
  visit.string("job", m.job);
  visit.string("user", m.user);
  visit.list("devices", m.devices, kMaxDevices);
  visit.number("count", m.count);
  visit.flag("shared", m.shared);
  visit.number("seconds", m.seconds);
  visit.flag("waits", m.waits);
  visit.flag("oversubscribed", m.oversubscribed);
}
template struct Codec<LeaseRequest>;

template <typename Visitor>
void fields(Visitor& visit, LeaseInfo& m) {
  visit.text("id", m.id);
  visit.text("job", m.job);
  visit.text("user", m.user);
  visit.text("creator", m.creator);
  visit.list("devices", m.devices, kMaxDevices);
  visit.flag("shared", m.shared);
  visit.flag("oversubscribed", m.oversubscribed);
  visit.number("created", m.created);
  visit.number("until", m.until);
  visit.number("sessions", m.sessions);
  visit.number("begun", m.begun);
  visit.number("device_ms", m.device_ms);
  visit.object("work", m.work);
}

template <typename Visitor>
void fields(Visitor& visit, LeaseAnswer& m) {
  visit.text("message", m.message);
  visit.bytes("secret", m.secret);
  visit.list("leases", m.leases, kMaxLeases);
}
template struct Codec<LeaseAnswer>;

bool is_lease_id(std::string_view text) {
  return text.size() == kIdDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string format(const LeaseKey& key) {
  std::string place;
  if (!key.host.empty()) {
    place = bracketed(key.host);
    if (key.port != 0 && key.port != kDefaultPort) place += "@" + std::to_string(key.port);
    place += "=";
  }
  if (key.secret == kNoLeaseSecret) return place + key.id;
  return place + key.id + ":" + identity::to_hex(key.secret);
}

Result<std::vector<LeaseKey>> parse_lease_keys(std::string_view text) {
  std::vector<LeaseKey> keys;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find(','), text.size());
    LeaseKey key;
    if (!parse_key(text.substr(0, end), &key)) {
      return Status(Code::kInvalidArgument,
                    "entry " + std::to_string(number) +
                        " of RCUDA_LEASE is not usable: write host[@port]=ID:SECRET or, for a "
                        "lease of your user, host[@port]=ID, as "
                        "\"rcuda-lease take\" prints it");
    }
    const auto same = [&](const LeaseKey& other) {
      return other.host == key.host && other.port == key.port;
    };
    if (std::any_of(keys.begin(), keys.end(), same)) {
      return Status(Code::kInvalidArgument, "entry " + std::to_string(number) +
                                                " of RCUDA_LEASE is for the same server as an "
                                                "earlier entry: name one lease for each server");
    }
    keys.push_back(std::move(key));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return keys;
}

std::optional<LeaseKey> find_lease_key(const std::vector<LeaseKey>& keys, std::string_view host,
                                       uint16_t port) {
  const std::string wanted = lower(host);
  std::optional<LeaseKey> found;
  for (const LeaseKey& key : keys) {
    if (key.host == wanted && key.port == port) return key;
    if (key.host.empty()) found = key;
  }
  return found;
}

}  // namespace rcuda::wire
