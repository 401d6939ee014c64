// The door fuzzers' work on one input. door_replay_test runs it over fixed mutations, too.
//
// Up to four clients at a time connect to a daemon, directly or through a door that may lie. Byte 0
// of the input chooses whether there is a door (1: yes; 3: yes, and the first client has finished
// its TLS handshake). Then follow operations: u8 operation (Knock) and client, u8 size, that many
// bytes. Some operations send what the fuzzer cannot guess: a valid ticket, token, credential or
// Hello. In every case, the daemon must send no information to a client that has not identified
// itself, must still serve another client, and must release everything when the clients have left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/messages/lease_messages.h"
#include "common/reach/protocol_hash.h"
#include "tests/fuzz/door_munge.h"
#include "tests/fuzz/door_world.h"

namespace rcuda::fuzz {

// The operations of a client. "First" is the first of the operation's bytes.
enum class Knock : uint8_t {
  kRaw,      // sends the bytes on the TCP connection, even if that speaks TLS
  kPieces,   // sends the other bytes in pieces of first + 1 bytes
  kInside,   // sends the bytes as the protocol's: directly, or through the door
  kMessage,  // sends a message: u8 type, then the body
  kConnect,  // connects again: over TCP, or over the local socket if first is odd
  kEnd,      // ends the client's data; closes the connection if first is odd
  kTicket,   // sends a valid ticket for the connection of client number `first`
  kToken,    // authenticates with a valid token
  kMunge,    // authenticates with a valid credential, as a server if first is odd
  kHello,    // sends a valid Hello that waits `first` ms
  kLease,    // requests a lease: u8 operation, u8 device, text of the job
  kDoor,     // begins TLS
  kReport,   // the door reports the handshake: u8 value of the key's bytes, text of a failure
  kCount,
};

class DoorVisit {
 public:
  DoorVisit(DoorWorld& world, bool has_door) : world_(world), has_door_(has_door) {}

  void run(Knock what, size_t number, const std::string& bytes) {
    const uint8_t first = bytes.empty() ? 0 : static_cast<uint8_t>(bytes[0]);
    std::unique_ptr<DoorClient>& client = clients_[number % std::size(clients_)];
    if (what == Knock::kConnect || !client) {
      client.reset();
      client = std::make_unique<DoorClient>(world_, what == Knock::kConnect && first & 1);
    }
    if (what >= Knock::kDoor) return has_door_ ? use_door(what, *client, bytes) : void();
    switch (what) {
      case Knock::kRaw:
        return client->send_raw(bytes);
      case Knock::kPieces:
        for (size_t at = 1; at < bytes.size(); at += 1 + first) {
          client->send(bytes.substr(at, 1 + first));
        }
        return;
      case Knock::kInside:
        return client->send(bytes);
      case Knock::kMessage:
        return bytes.empty() ? void() : client->send(wire::MessageType{first}, body(bytes, 1));
      case Knock::kEnd:
        client->end_of_data();
        if (first & 1) client.reset();
        return;
      case Knock::kTicket:
        return show_ticket(*client, clients_[first % std::size(clients_)].get());
      case Knock::kToken:
        return show_token(*client);
      case Knock::kMunge:
        return show_credential(*client, first & 1);
      case Knock::kHello:
        return client->send(wire::MessageType::kHello, hello(first));
      case Knock::kLease:
        return ask_for_lease(*client, bytes);
      default:
        return;
    }
  }

 private:
  static std::vector<std::byte> body(const std::string& bytes, size_t from) {
    const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
    return {data + std::min(from, bytes.size()), data + bytes.size()};
  }

  static std::vector<std::byte> hello(uint32_t wait_ms) {
    wire::Hello hello;
    hello.protocol_hash = wire::protocol_hash();
    hello.medium = "tcp";
    hello.devices = {0};
    hello.wait_ms = wait_ms;
    return wire::encode(hello);
  }

  static void use_door(Knock what, DoorClient& client, const std::string& bytes) {
    if (what == Knock::kDoor) return client.go_through_door();
    server::DoorReport report;
    report.proof.fill(bytes.empty() ? 0 : static_cast<uint8_t>(bytes[0]));
    if (bytes.size() > 1) bytes.copy(report.failure, sizeof report.failure, 1);
    client.report(report);
  }

  void show_ticket(DoorClient& client, const DoorClient* of) {
    const Result<wire::Endpoint> own = wire::own_endpoint(of ? of->fd() : client.fd());
    const Result<wire::Endpoint> peer = wire::peer_endpoint(of ? of->fd() : client.fd());
    if (!own.ok() || !peer.ok()) return;
    DoorClient local(world_, true);
    local.send(wire::MessageType::kTicketQuery, wire::encode(wire::TicketQuery{*own, *peer}));
    if (!local.was_told(wire::MessageType::kTicket)) return;
    if ((!of || of == &client) && !client.is_behind_door()) client.is_known();
    client.send(wire::MessageType::kTicket, local.told());
  }

  void show_token(DoorClient& client) {
    wire::Authenticate message;
    message.method = wire::Method::kToken;
    message.id = world_.token().id;
    const tls::Key mac = tls::token_proof(*identity::hash_of(world_.token().secret),
                                          client.binding().value_or(tls::Key()));
    std::copy(mac.begin(), mac.end(), message.mac);
    authenticate(client, message, client.binding().has_value());
  }

  static void show_credential(DoorClient& client, bool of_server) {
    uint8_t nonce[32] = {};
    const auto side = of_server ? wire::MungeSide::kServer : wire::MungeSide::kClient;
    std::ranges::copy(client.binding().value_or(tls::Key()), nonce);
    wire::Authenticate message;
    message.method = wire::Method::kMunge;
    message.credential = mint_credential(::geteuid(), wire::munge_payload(side, nonce));
    authenticate(client, message, client.binding().has_value() && !of_server);
  }

  static void authenticate(DoorClient& client, const wire::Authenticate& message, bool is_good) {
    if (is_good) client.is_known();
    client.send(wire::MessageType::kAuthenticate, wire::encode(message));
    if (client.binding()) client.wait_for_answer();
  }

  static void ask_for_lease(DoorClient& client, const std::string& bytes) {
    wire::LeaseRequest request;
    const auto at = [&](size_t i) { return i < bytes.size() ? static_cast<uint8_t>(bytes[i]) : 0; };
    request.operation = static_cast<wire::LeaseOperation>(1 + at(0) % 4);
    request.devices = {static_cast<uint32_t>(at(1) & 3)};
    request.shared = at(1) & 4;
    request.seconds = 60;
    if (bytes.size() > 2) request.job = bytes.substr(2);
    client.send(wire::MessageType::kLeaseRequest, wire::encode(request));
  }

  DoorWorld& world_;
  const bool has_door_;
  std::unique_ptr<DoorClient> clients_[4];
};

// The number of open descriptors. Pipes do not count, because libFuzzer opens some too.
inline size_t descriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // set for a descriptor that is closed, such as the iterator's own
    count += !std::filesystem::read_symlink(entry, gone).string().starts_with("pipe:") && !gone;
  }
  return count;
}

// Returns the world. Starts a new daemon after 256 inputs, because some state outlives the clients:
// leases, for example.
inline DoorWorld& door_world() {
  static DoorWorld& world = *new DoorWorld;
  static size_t inputs = 0;
  if (inputs++ % 256 != 0) return world;
  world.start();
  {
    // The daemon opens the file of tokens for the first token, and keeps the file open.
    DoorVisit first(world, true);
    for (const Knock what : {Knock::kDoor, Knock::kReport, Knock::kToken}) first.run(what, 0, "");
  }
  world.turn();
  return world;
}

inline void fuzz_door(const uint8_t* data, size_t size) {
  if (size == 0) return;
  DoorWorld& world = door_world();
  static const size_t before = descriptors();
  {
    DoorVisit visit(world, data[0] & 1);
    if ((data[0] & 3) == 3) {
      visit.run(Knock::kDoor, 0, "");
      visit.run(Knock::kReport, 0, "");
    }
    for (size_t at = 1; at + 2 <= size;) {
      const size_t bytes = std::min<size_t>(data[at + 1], size - at - 2);
      const auto what = static_cast<Knock>(data[at] % 32 % static_cast<size_t>(Knock::kCount));
      visit.run(what, data[at] / 64, {reinterpret_cast<const char*>(data) + at + 2, bytes});
      at += 2 + bytes;
    }
    DoorClient good(world, true);
    good.send(wire::MessageType::kStatusQuery, {});
    must(good.was_told(wire::MessageType::kStatus));
  }
  forget_credentials();
  // Waits until the worker processes, which all fail to start, have ended too.
  for (int i = 0; descriptors() != before; ++i) {
    must(i < 1000);
    world.turn(milliseconds(i < 10 ? 0 : 10));
  }
}

inline std::vector<std::string> door_corpus(bool with_door) {
  const auto knock = [](Knock what, const std::string& bytes = "", int client = 0) {
    return std::string{static_cast<char>(static_cast<int>(what) + 64 * client),
                       static_cast<char>(bytes.size())} +
           bytes;
  };
  const std::string odd = "\1", list = "\3";
  const std::string status = knock(Knock::kMessage, "\5"), unused = knock(Knock::kMessage, "\14");
  const std::string end = knock(Knock::kEnd), close = knock(Knock::kEnd, odd);
  const std::string local = knock(Knock::kConnect, odd), tcp = knock(Knock::kConnect);
  const std::string hello = knock(Knock::kHello), patient = knock(Knock::kHello, "\200");
  const wire::MessageHeader query_header{wire::kMagic, wire::kProtocolVersion,
                                         wire::MessageType::kStatusQuery, 4};
  const std::string header =
      std::string(reinterpret_cast<const char*>(&query_header), sizeof query_header) + "body";
  const std::vector<std::string> plain = {
      knock(Knock::kTicket) + hello + close,
      knock(Knock::kTicket) + status,
      knock(Knock::kTicket, odd) + status,
      tcp + knock(Knock::kConnect, "", 1) + knock(Knock::kTicket, odd) + hello + status,
      knock(Knock::kTicket) + knock(Knock::kTicket) + hello,
      knock(Knock::kMunge) + hello + end,
      knock(Knock::kMunge) + status,
      knock(Knock::kMunge, odd) + status,
      unused + unused,
      knock(Knock::kToken) + status,
      hello + status,
      local + hello + end,
      local + patient + knock(Knock::kHello, "", 1) + close,
      local + status,
      local + knock(Knock::kLease, std::string("\0\1job", 5)) + local + hello,
      local + knock(Knock::kLease, std::string("\0\4job", 5)) + local +
          knock(Knock::kLease, std::string("\1\0job", 5)) + local +
          knock(Knock::kLease, std::string("\2\0job", 5)) + local + knock(Knock::kLease, list),
      knock(Knock::kLease, list),
      knock(Knock::kPieces, std::string(1, '\0') + header) + end,
      knock(Knock::kRaw, header.substr(0, 17)) + knock(Knock::kRaw, header.substr(17)),
      knock(Knock::kMessage, "\2" + std::string(20, 'a')),
      knock(Knock::kMessage, "\7" + std::string(40, 'p')),
      local + knock(Knock::kMessage, "\27" + std::string(52, 'q')),
      knock(Knock::kMessage, "\27" + std::string(52, 'q')),
      knock(Knock::kRaw, std::string("\26\3\1\0\5\1\0\0\1\0", 10)) + status,
  };
  std::vector<std::string> corpus;
  for (const std::string& input : plain)
    corpus.push_back(std::string(1, with_door ? 3 : 0) + input);
  if (!with_door) return corpus;
  const std::string door = knock(Knock::kDoor), report = knock(Knock::kReport, odd);
  corpus.push_back("\1" + door + report + knock(Knock::kToken) + hello + close);
  corpus.push_back("\1" + door + knock(Knock::kReport, "\2the handshake failed") + report + status);
  corpus.push_back("\1" + door + knock(Knock::kToken) + status);
  corpus.push_back("\1" + door + knock(Knock::kInside, "a part") + report);
  corpus.push_back("\1" + door + report + report + knock(Knock::kToken));
  corpus.push_back("\1" + knock(Knock::kRaw, header) + door + report);
  corpus.push_back("\3" + knock(Knock::kMunge) + status);
  corpus.push_back("\3" + knock(Knock::kToken) + knock(Knock::kRaw, header) + hello);
  return corpus;
}

}  // namespace rcuda::fuzz
