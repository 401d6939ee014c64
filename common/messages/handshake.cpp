#include "common/messages/handshake.h"

#include "common/messages/message_codec.h"

namespace rcuda::wire {
namespace {

// Further limits of counts in messages.
constexpr uint32_t kMaxWindows = 4096;
constexpr uint32_t kMaxAttributes = 4096;
constexpr uint32_t kMaxChain = identity::kMostCertificates;
constexpr uint32_t kMaxCommands = 4096;  // api::kMaxOpcodes
constexpr TextLimits kMedium{1, kMaxMediumName};
constexpr TextLimits kFallback{0, kMaxMediumName};

}  // namespace

template <typename Visitor>
void fields(Visitor& visit, AddressWindow& m) {
  visit.number("base", m.base);
  visit.number("bytes", m.bytes);
}

template <typename Visitor>
void fields(Visitor& visit, Hello& m) {
  visit.number("protocol_hash", m.protocol_hash);
  visit.list("commands", m.commands, kMaxCommands);
  visit.text("medium", m.medium, kMedium);
  visit.text("fallback", m.fallback, kFallback);
  visit.number("pid", m.pid);
  visit.number("uid", m.uid);
  visit.text("host", m.host);
  visit.text("program", m.program);
  visit.text("user", m.user);
  visit.bytes("session", m.session);
  visit.list("devices", m.devices, kMaxDevices);
  visit.list("taken", m.taken, kMaxWindows);
  visit.number("worker", m.worker);
  visit.number("servers", m.servers);
  visit.number("devices_left", m.devices_left);
  visit.string("p2p_strategy", m.p2p_strategy);
  visit.string("p2p_path", m.p2p_path);
  visit.number("wait_ms", m.wait_ms);
  visit.number("reconnect_ms", m.reconnect_ms);
  visit.string("lease", m.lease);
  visit.bytes("lease_proof", m.lease_proof);
}
template struct Codec<Hello>;

template <typename Visitor>
void fields(Visitor& visit, Queued& m) {
  visit.number("place", m.place);
  visit.text("reason", m.reason);
}
template struct Codec<Queued>;

template <typename Visitor>
void fields(Visitor& visit, Attach& m) {
  visit.bytes("session", m.session);
  visit.bytes("token", m.token);
  visit.number("index", m.index);
  visit.number("attempt", m.attempt);
}
template struct Codec<Attach>;

template <typename Visitor>
void fields(Visitor& visit, PeerHello& m) {
  visit.bytes("session", m.session);
  visit.number("worker", m.worker);
  visit.number("link", m.link);
  visit.number("stream", m.stream);
  visit.text("medium", m.medium, kMedium);
  visit.number("attempt", m.attempt);
  visit.bytes("token", m.token);
}
template struct Codec<PeerHello>;

template <typename Visitor>
void fields(Visitor& visit, Endpoint& m) {
  visit.bytes("address", m.address);
  visit.number("port", m.port);
}

template <typename Visitor>
void fields(Visitor& visit, TicketQuery& m) {
  visit.object("client", m.client);
  visit.object("server", m.server);
}
template struct Codec<TicketQuery>;

template <typename Visitor>
void fields(Visitor& visit, Ticket& m) {
  visit.bytes("secret", m.secret);
}
template struct Codec<Ticket>;

template <typename Visitor>
void fields(Visitor& visit, identity::DerCertificate& m) {
  visit.string("der", m.der, identity::kMostChainBytes);
}

template <typename Visitor>
void fields(Visitor& visit, Challenge& m) {
  visit.bytes("nonce", m.nonce);
  visit.list("chain", m.chain, kMaxChain);
  visit.string("signature", m.signature);
}
template struct Codec<Challenge>;

template <typename Visitor>
void fields(Visitor& visit, Authenticate& m) {
  static constexpr const char* kMethods[] = {"token", "certificate", "munge"};
  visit.choice("method", m.method, kMethods);
  visit.string("id", m.id);
  visit.bytes("mac", m.mac);
  visit.list("chain", m.chain, kMaxChain);
  visit.string("signature", m.signature);
  visit.string("credential", m.credential);
}
template struct Codec<Authenticate>;

template <typename Visitor>
void fields(Visitor& visit, Authenticated& m) {
  visit.string("credential", m.credential);
}
template struct Codec<Authenticated>;

template <typename Visitor>
void fields(Visitor& visit, DeviceInfo& m) {
  visit.text("name", m.name);
  visit.text("pci_bus_id", m.pci_bus_id);
  visit.bytes("uuid", m.uuid);
  visit.number("total_bytes", m.total_bytes);
  visit.number("ordinal", m.ordinal);
  visit.list("attributes", m.attributes, kMaxAttributes);
  visit.list("peer_attributes", m.peer_attributes, 4 * kMaxDevices);
}

template <typename Visitor>
void fields(Visitor& visit, Welcome& m) {
  visit.bytes("token", m.token);
  visit.number("driver_version", m.driver_version);
  visit.number("worker_pid", m.worker_pid);
  visit.text("server", m.server);
  visit.list("windows", m.windows, kMaxWindows);
  visit.number("staging_bytes", m.staging_bytes);
  visit.number("priority_least", m.priority_least);
  visit.number("priority_greatest", m.priority_greatest);
  visit.list("devices", m.devices, kMaxDevices);
  visit.list("lacking", m.lacking, kMaxCommands);
  visit.text("fell_back", m.fell_back);
  visit.number("reconnect_ms", m.reconnect_ms);
}
template struct Codec<Welcome>;

template <typename Visitor>
void fields(Visitor& visit, Refusal& m) {
  visit.number("code", m.code);
  visit.text("reason", m.reason);
}
template struct Codec<Refusal>;

std::vector<std::byte> munge_payload(MungeSide side, const uint8_t (&nonce)[32]) {
  MessageWriter out;
  out.string("side", side == MungeSide::kServer ? "rcuda server" : "rcuda client");
  // The payload names the kind of connection, because servers of other builds may accept
  // credentials on connections without TLS.
  out.string("connection", "tls");
  out.bytes("nonce", nonce);
  return out.take();
}

bool is_munge_payload(const std::vector<std::byte>& payload, MungeSide side,
                      const uint8_t (&nonce)[32]) {
  return payload == munge_payload(side, nonce);
}

Result<uint64_t> protocol_hash_of_hello(const std::vector<std::byte>& body) {
  uint64_t hash = 0;
  if (body.size() < sizeof hash) return malformed(Hello::kName);
  MessageReader(body).number("protocol_hash", hash);
  return hash;
}

}  // namespace rcuda::wire
