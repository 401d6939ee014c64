#include "common/wire/lease_messages.h"

#include <algorithm>

#include "common/base/host_port.h"
#include "common/base/lower.h"
#include "common/identity/encoding.h"
#include "common/wire/forms.h"
#include "common/wire/handshake.h"
#include "common/wire/message_codec.h"
#include "common/wire/work_codec.h"

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

std::vector<std::byte> encode(const LeaseRequest& message) {
  MessageWriter out;
  out.number(form_of(MessageType::kLeaseRequest));
  out.number(static_cast<uint32_t>(message.operation));
  out.string(message.id);
  out.string(message.job);
  out.string(message.user);
  out.numbers(message.devices);
  out.number(message.count);
  out.flag(message.shared);
  out.number(message.seconds);
  return out.take();
}

Result<LeaseRequest> decode_lease_request(const std::vector<std::byte>& body) {
  MessageReader in(body);
  RCUDA_RETURN_IF_ERROR(read_form(in, MessageType::kLeaseRequest));
  LeaseRequest message;
  uint32_t operation = 0;
  in.number(&operation);
  in.string(&message.id);
  in.string(&message.job);
  in.string(&message.user);
  in.numbers(&message.devices, kMaxDevices);
  in.number(&message.count);
  in.flag(&message.shared);
  in.number(&message.seconds);
  message.operation = static_cast<LeaseOperation>(operation);
  if (!in.complete() || operation < static_cast<uint32_t>(LeaseOperation::kTake) ||
      operation > static_cast<uint32_t>(LeaseOperation::kList)) {
    return malformed("LeaseRequest");
  }
  return message;
}

std::vector<std::byte> encode(const LeaseAnswer& message) {
  MessageWriter out;
  out.number(form_of(MessageType::kLeaseAnswer));
  out.string(message.message);
  out.bytes(message.secret.data(), message.secret.size());
  out.number(static_cast<uint32_t>(message.leases.size()));
  for (const LeaseInfo& lease : message.leases) {
    out.string(lease.id);
    out.string(lease.job);
    out.string(lease.user);
    out.string(lease.creator);
    out.numbers(lease.devices);
    out.flag(lease.shared);
    out.number(lease.created);
    out.number(lease.until);
    out.number(lease.sessions);
    out.number(lease.begun);
    out.number(lease.device_ms);
    write(out, lease.work);
  }
  return out.take();
}

Result<LeaseAnswer> decode_lease_answer(const std::vector<std::byte>& body) {
  MessageReader in(body);
  RCUDA_RETURN_IF_ERROR(read_form(in, MessageType::kLeaseAnswer));
  LeaseAnswer message;
  uint32_t leases = 0;
  constexpr size_t kMinLeaseBytes = 4 * 4 + 4 + 1 + 8 + 8 + 4 + 8 + 8 + 4;
  if (!in.text(&message.message) || !in.bytes(message.secret.data(), message.secret.size()) ||
      !in.count(&leases, kMaxLeases, kMinLeaseBytes)) {
    return malformed("LeaseAnswer");
  }
  message.leases.resize(leases);
  for (LeaseInfo& lease : message.leases) {
    in.text(&lease.id);
    in.text(&lease.job);
    in.text(&lease.user);
    in.text(&lease.creator);
    in.numbers(&lease.devices, kMaxDevices);
    in.flag(&lease.shared);
    in.number(&lease.created);
    in.number(&lease.until);
    in.number(&lease.sessions);
    in.number(&lease.begun);
    in.number(&lease.device_ms);
    if (!read(in, &lease.work)) return malformed("LeaseAnswer");
  }
  if (!in.complete()) return malformed("LeaseAnswer");
  return message;
}

bool is_lease_id(std::string_view text) {
  return text.size() == kIdDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string format(const LeaseKey& key) {
  std::string place;
  if (!key.host.empty()) {
    place = key.host.find(':') == std::string::npos ? key.host : "[" + key.host + "]";
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
                                                "earlier one: a session has one lease");
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
