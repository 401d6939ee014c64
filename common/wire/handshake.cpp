#include "common/wire/handshake.h"

#include <cstring>
#include <span>

#include "common/base/socket_io.h"
#include "common/wire/forms.h"
#include "common/wire/gpu_report.h"
#include "common/wire/message_codec.h"
#include "common/wire/protocol.h"
#include "common/wire/work_codec.h"

namespace rcuda::wire {
namespace {

// More limits of what a message may claim to contain.
constexpr uint32_t kMaxWindows = 4096;
constexpr uint32_t kMaxAttributes = 4096;
constexpr uint32_t kMaxCommands = 4096;  // api::kMaxOpcodes
constexpr uint32_t kMaxSessions = 100'000;

constexpr char kWhere[] = "in the handshake";

using Writer = MessageWriter;
using Reader = MessageReader;

bool get_medium(Reader& in, std::string* name) {
  return in.text(name) && ((!name->empty() && name->size() <= kMaxMediumName) || in.fail());
}

bool get_fallback(Reader& in, std::string* name) {
  return in.text(name) && (name->size() <= kMaxMediumName || in.fail());
}

void put_windows(Writer& out, const std::vector<AddressWindow>& windows) {
  out.number(static_cast<uint32_t>(windows.size()));
  for (const AddressWindow& window : windows) {
    out.number(window.base);
    out.number(window.bytes);
  }
}

bool get_windows(Reader& in, std::vector<AddressWindow>* windows) {
  uint32_t count = 0;
  if (!in.count(&count, kMaxWindows, sizeof(AddressWindow))) return false;
  windows->resize(count);
  for (AddressWindow& window : *windows) {
    in.number(&window.base);
    in.number(&window.bytes);
  }
  return true;
}

void put_endpoint(Writer& out, const Endpoint& endpoint) {
  out.bytes(endpoint.address, sizeof endpoint.address);
  out.number(endpoint.port);
}

bool get_endpoint(Reader& in, Endpoint* endpoint) {
  return in.bytes(endpoint->address, sizeof endpoint->address) && in.number(&endpoint->port);
}

}  // namespace

std::vector<std::byte> encode(const Hello& message) {
  Writer out;
  out.number(message.protocol_hash);
  out.numbers(message.commands);
  out.string(message.medium);
  out.string(message.fallback);
  out.number(message.pid);
  out.number(message.uid);
  out.string(message.host);
  out.string(message.program);
  out.string(message.user);
  out.bytes(message.session, sizeof message.session);
  out.numbers(message.devices);
  put_windows(out, message.taken);
  out.number(message.worker);
  out.number(message.servers);
  out.number(message.devices_left);
  out.string(message.p2p_strategy);
  out.string(message.p2p_path);
  out.number(message.wait_ms);
  out.string(message.lease);
  out.bytes(message.lease_secret, sizeof message.lease_secret);
  return out.take();
}

Result<Hello> decode_hello(const std::vector<std::byte>& body) {
  Reader in(body);
  Hello message;
  if (!in.number(&message.protocol_hash) || !in.numbers(&message.commands, kMaxCommands) ||
      !get_medium(in, &message.medium) || !get_fallback(in, &message.fallback) ||
      !in.number(&message.pid) || !in.number(&message.uid) || !in.text(&message.host) ||
      !in.text(&message.program) || !in.text(&message.user) ||
      !in.bytes(message.session, sizeof message.session) ||
      !in.numbers(&message.devices, kMaxDevices) || !get_windows(in, &message.taken)) {
    return malformed("Hello");
  }
  in.number(&message.worker);
  in.number(&message.servers);
  in.number(&message.devices_left);
  in.string(&message.p2p_strategy);
  in.string(&message.p2p_path);
  in.number(&message.wait_ms);
  in.string(&message.lease);
  in.bytes(message.lease_secret, sizeof message.lease_secret);
  if (!in.complete()) return malformed("Hello");
  return message;
}

Result<uint64_t> protocol_hash_of_hello(const std::vector<std::byte>& body) {
  uint64_t hash = 0;
  if (!Reader(body).number(&hash)) return malformed("Hello");
  return hash;
}

std::vector<std::byte> encode(const Queued& message) {
  Writer out;
  out.number(message.place);
  out.string(message.reason);
  return out.take();
}

Result<Queued> decode_queued(const std::vector<std::byte>& body) {
  Reader in(body);
  Queued message;
  in.number(&message.place);
  in.text(&message.reason);
  if (!in.complete()) return malformed("Queued");
  return message;
}

std::vector<std::byte> encode(const Attach& message) {
  Writer out;
  out.bytes(message.token, sizeof message.token);
  out.number(message.index);
  return out.take();
}

Result<Attach> decode_attach(const std::vector<std::byte>& body) {
  Reader in(body);
  Attach message;
  in.bytes(message.token, sizeof message.token);
  in.number(&message.index);
  if (!in.complete()) return malformed("Attach");
  return message;
}

std::vector<std::byte> encode(const PeerHello& message) {
  Writer out;
  out.bytes(message.session, sizeof message.session);
  out.number(message.worker);
  out.number(message.link);
  out.number(message.stream);
  out.string(message.medium);
  return out.take();
}

Result<PeerHello> decode_peer_hello(const std::vector<std::byte>& body) {
  Reader in(body);
  PeerHello message;
  in.bytes(message.session, sizeof message.session);
  in.number(&message.worker);
  in.number(&message.link);
  in.number(&message.stream);
  get_medium(in, &message.medium);
  if (!in.complete()) return malformed("PeerHello");
  return message;
}

std::vector<std::byte> encode(const TicketQuery& message) {
  Writer out;
  put_endpoint(out, message.client);
  put_endpoint(out, message.server);
  return out.take();
}

Result<TicketQuery> decode_ticket_query(const std::vector<std::byte>& body) {
  Reader in(body);
  TicketQuery message;
  get_endpoint(in, &message.client);
  get_endpoint(in, &message.server);
  if (!in.complete()) return malformed("TicketQuery");
  return message;
}

std::vector<std::byte> encode(const Ticket& message) {
  Writer out;
  out.bytes(message.secret, sizeof message.secret);
  return out.take();
}

Result<Ticket> decode_ticket(const std::vector<std::byte>& body) {
  Reader in(body);
  Ticket message;
  in.bytes(message.secret, sizeof message.secret);
  if (!in.complete()) return malformed("Ticket");
  return message;
}

std::vector<std::byte> munge_payload(MungeSide side, const uint8_t (&nonce)[32]) {
  Writer out;
  out.string(side == MungeSide::kServer ? "rcuda server" : "rcuda client");
  out.string("tls");  // servers of other builds may take credentials for connections without TLS
  out.bytes(nonce, sizeof nonce);
  return out.take();
}

bool is_munge_payload(const std::vector<std::byte>& payload, MungeSide side,
                      const uint8_t (&nonce)[32]) {
  const std::vector<std::byte> wanted = munge_payload(side, nonce);
  return payload.size() == wanted.size() &&
         std::memcmp(payload.data(), wanted.data(), wanted.size()) == 0;
}

std::vector<std::byte> encode(const Authenticate& message) {
  Writer out;
  out.number(static_cast<uint32_t>(message.method));
  out.string(message.id);
  out.bytes(message.secret, sizeof message.secret);
  out.string(message.credential);
  return out.take();
}

Result<Authenticate> decode_authenticate(const std::vector<std::byte>& body) {
  Reader in(body);
  Authenticate message;
  uint32_t method = 0;
  in.number(&method);
  in.string(&message.id);
  in.bytes(message.secret, sizeof message.secret);
  in.string(&message.credential);
  message.method = static_cast<Method>(method);
  if (!in.complete() || method < static_cast<uint32_t>(Method::kToken) ||
      method > static_cast<uint32_t>(Method::kMunge)) {
    return malformed("Authenticate");
  }
  return message;
}

std::vector<std::byte> encode(const Authenticated& message) {
  Writer out;
  out.string(message.credential);
  return out.take();
}

Result<Authenticated> decode_authenticated(const std::vector<std::byte>& body) {
  Reader in(body);
  Authenticated message;
  in.string(&message.credential);
  if (!in.complete()) return malformed("Authenticated");
  return message;
}

std::vector<std::byte> encode(const Welcome& message) {
  Writer out;
  out.bytes(message.token, sizeof message.token);
  out.number(message.driver_version);
  out.number(message.worker_pid);
  out.string(message.server);
  put_windows(out, message.windows);
  out.number(message.staging_bytes);
  out.number(message.priority_least);
  out.number(message.priority_greatest);
  out.number(static_cast<uint32_t>(message.devices.size()));
  for (const DeviceInfo& device : message.devices) {
    out.string(device.name);
    out.string(device.pci_bus_id);
    out.bytes(device.uuid, sizeof device.uuid);
    out.number(device.total_bytes);
    out.number(device.ordinal);
    out.numbers(device.attributes);
    out.numbers(device.peer_attributes);
  }
  out.numbers(message.lacking);
  out.string(message.fell_back);
  return out.take();
}

Result<Welcome> decode_welcome(const std::vector<std::byte>& body) {
  Reader in(body);
  Welcome message;
  uint32_t devices = 0;
  constexpr size_t kMinDeviceBytes = 4 + 4 + 16 + 8 + 4 + 4 + 4;
  if (!in.bytes(message.token, sizeof message.token) || !in.number(&message.driver_version) ||
      !in.number(&message.worker_pid) || !in.text(&message.server) ||
      !get_windows(in, &message.windows) || !in.number(&message.staging_bytes) ||
      !in.number(&message.priority_least) || !in.number(&message.priority_greatest) ||
      !in.count(&devices, kMaxDevices, kMinDeviceBytes)) {
    return malformed("Welcome");
  }
  message.devices.resize(devices);
  for (DeviceInfo& device : message.devices) {
    if (!in.text(&device.name) || !in.text(&device.pci_bus_id) ||
        !in.bytes(device.uuid, sizeof device.uuid) || !in.number(&device.total_bytes) ||
        !in.number(&device.ordinal) || !in.numbers(&device.attributes, kMaxAttributes) ||
        !in.numbers(&device.peer_attributes, 4 * kMaxDevices)) {
      return malformed("Welcome");
    }
  }
  in.numbers(&message.lacking, kMaxCommands);
  in.text(&message.fell_back);
  if (!in.complete()) return malformed("Welcome");
  return message;
}

std::vector<std::byte> encode(const Refusal& message) {
  Writer out;
  out.number(message.code);
  out.string(message.reason);
  return out.take();
}

Result<Refusal> decode_refusal(const std::vector<std::byte>& body) {
  Reader in(body);
  Refusal message;
  in.number(&message.code);
  in.text(&message.reason);
  if (!in.complete()) return malformed("Refusal");
  return message;
}

std::vector<std::byte> encode(const ServerStatus& message) {
  Writer out;
  out.number(form_of(MessageType::kStatus));
  out.string(message.server);
  out.string(message.driver);
  out.number(message.idle_workers);
  out.number(message.max_sessions);
  out.number(message.waiting);
  out.flag(message.draining);
  out.number(static_cast<uint32_t>(message.devices.size()));
  for (const ServerStatus::Device& device : message.devices) {
    out.number(device.ordinal);
    out.string(device.name);
    out.number(device.total_bytes);
  }
  out.number(static_cast<uint32_t>(message.sessions.size()));
  for (const ServerStatus::Session& session : message.sessions) {
    out.string(session.user);
    out.string(session.program);
    out.string(session.host);
    out.number(session.client_pid);
    out.number(session.worker_pid);
    out.string(session.medium);
    out.number(session.seconds);
    out.numbers(session.devices);
    out.string(session.job);
    write(out, session.work);
  }
  out.numbers(message.totals.refused);
  out.number(message.totals.worker_starts);
  out.number(message.totals.worker_failures);
  out.number(message.totals.worker_start_us);
  out.number(static_cast<uint32_t>(message.totals.accounts.size()));
  for (const ServerStatus::Account& account : message.totals.accounts) {
    out.string(account.user);
    out.string(account.medium);
    out.number(account.sessions);
    write(out, account.work);
  }
  return out.take();
}

Result<ServerStatus> decode_status(const std::vector<std::byte>& body) {
  Reader in(body);
  RCUDA_RETURN_IF_ERROR(read_form(in, MessageType::kStatus));
  ServerStatus message;
  uint32_t devices = 0, sessions = 0;
  constexpr size_t kMinDeviceBytes = 4 + 4 + 8;
  constexpr size_t kMinSessionBytes = 3 * 4 + 4 + 4 + 4 + 8 + 4 + 4 + 4;
  constexpr size_t kMinAccountBytes = 4 + 4 + 8 + 4;
  if (!in.text(&message.server) || !in.text(&message.driver) || !in.number(&message.idle_workers) ||
      !in.number(&message.max_sessions) || !in.number(&message.waiting) ||
      !in.flag(&message.draining) || !in.count(&devices, kMaxDevices, kMinDeviceBytes)) {
    return malformed("status");
  }
  message.devices.resize(devices);
  for (ServerStatus::Device& device : message.devices) {
    if (!in.number(&device.ordinal) || !in.text(&device.name) || !in.number(&device.total_bytes)) {
      return malformed("status");
    }
  }
  if (!in.count(&sessions, kMaxSessions, kMinSessionBytes)) return malformed("status");
  message.sessions.resize(sessions);
  for (ServerStatus::Session& session : message.sessions) {
    if (!in.text(&session.user) || !in.text(&session.program) || !in.text(&session.host) ||
        !in.number(&session.client_pid) || !in.number(&session.worker_pid) ||
        !get_medium(in, &session.medium) || !in.number(&session.seconds) ||
        !in.numbers(&session.devices, kMaxDevices) || !in.text(&session.job) ||
        !read(in, &session.work)) {
      return malformed("status");
    }
  }
  ServerStatus::Totals& totals = message.totals;
  uint32_t accounts = 0;
  if (!in.numbers(&totals.refused, kMaxCodes) || !in.number(&totals.worker_starts) ||
      !in.number(&totals.worker_failures) || !in.number(&totals.worker_start_us) ||
      !in.count(&accounts, kMaxAccounts, kMinAccountBytes)) {
    return malformed("status");
  }
  totals.accounts.resize(accounts);
  for (ServerStatus::Account& account : totals.accounts) {
    if (!in.text(&account.user) || !get_medium(in, &account.medium) ||
        !in.number(&account.sessions) || !read(in, &account.work)) {
      return malformed("status");
    }
  }
  if (!in.complete()) return malformed("status");
  return message;
}

Status check_header(const MessageHeader& header) {
  if (header.magic != kMagic) {
    return Status(Code::kProtocol, "the peer does not speak rcuda's protocol: check host and port");
  }
  if (header.version != kProtocolVersion) {
    return Status(Code::kProtocol, "the peer speaks protocol version " +
                                       std::to_string(header.version) + ", this side version " +
                                       std::to_string(kProtocolVersion) +
                                       ": install the same release of rcuda on both");
  }
  const auto type = static_cast<uint32_t>(header.type);
  if (type < static_cast<uint32_t>(MessageType::kHello) ||
      type > static_cast<uint32_t>(MessageType::kExportAnswer) ||
      header.body_bytes > kMaxMessageBytes) {
    return malformed("handshake");
  }
  return {};
}

namespace {

template <typename Socket>
Status write_to(const Socket& socket, MessageType type, const std::vector<std::byte>& body,
                Deadline deadline) {
  const std::vector<std::byte> all = message_bytes(type, body);
  if (all.empty()) {
    return Status(Code::kInternal,
                  "a handshake message of " + std::to_string(body.size()) + " bytes is too long");
  }
  return send_all(socket, all, deadline).with_context(kWhere);
}

template <typename Socket>
Result<std::pair<MessageType, std::vector<std::byte>>> read_from(const Socket& socket,
                                                                 Deadline deadline) {
  MessageHeader header;
  const auto receive = [&](std::span<std::byte> bytes) {
    return recv_all(socket, bytes, deadline).with_context(kWhere);
  };
  RCUDA_RETURN_IF_ERROR(receive(writable_bytes_of(header)));
  RCUDA_RETURN_IF_ERROR(check_header(header));
  std::vector<std::byte> body(header.body_bytes);
  RCUDA_RETURN_IF_ERROR(receive(body));
  return std::make_pair(header.type, std::move(body));
}

}  // namespace

std::vector<std::byte> message_bytes(MessageType type, const std::vector<std::byte>& body) {
  if (body.size() > kMaxMessageBytes) return {};
  MessageHeader header;
  header.version = kProtocolVersion;
  header.type = type;
  header.body_bytes = static_cast<uint32_t>(body.size());
  std::vector<std::byte> all(sizeof header + body.size());
  std::memcpy(all.data(), &header, sizeof header);
  if (!body.empty()) std::memcpy(all.data() + sizeof header, body.data(), body.size());
  return all;
}

Status write_message(int socket, MessageType type, const std::vector<std::byte>& body,
                     std::chrono::steady_clock::time_point deadline) {
  return write_to(socket, type, body, deadline);
}

Status write_message(const Socket& socket, MessageType type, const std::vector<std::byte>& body,
                     std::chrono::steady_clock::time_point deadline) {
  return write_to(socket, type, body, deadline);
}

Result<std::pair<MessageType, std::vector<std::byte>>> read_message(
    int socket, std::chrono::steady_clock::time_point deadline) {
  return read_from(socket, deadline);
}

Result<std::pair<MessageType, std::vector<std::byte>>> read_message(
    const Socket& socket, std::chrono::steady_clock::time_point deadline) {
  return read_from(socket, deadline);
}

}  // namespace rcuda::wire
