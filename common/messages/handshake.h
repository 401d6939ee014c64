// The handshake: messages of client, daemon and worker on the control socket before a Link is made.
//
//   client -> daemon   Hello: which devices, over which medium; and texts about the client, for the
//                      log. One of them, the client's host, is also a part of the owner
//   daemon -> client   Queued: at once, and every second while the client waits in the queue or for
//                      a free worker
//   daemon -> worker   the socket and the Hello, over their socket pair
//   worker -> client   Welcome: devices with all attributes, window of addresses, staging; or
//                      Refusal
//   both               transport::make_link() on the same socket; if it fails and the Hello has a
//                      fallback, make_link() over the fallback on a further socket
//                      (kFallbackSocket)
//   worker -> client   the first frame of the event ring: ReadyEvent, which names the staging
//                      region. From now on the client may send commands
//
// Further sockets of a session begin with Attach in place of Hello. The daemon passes each further
// socket to the worker of the session that the Attach names. Only a socket that replaces a lost
// socket (Welcome::reconnect_ms) gets an answer:
//
//   client -> daemon   Attach
//   worker -> client   Attached; or from the daemon Refusal, if the session has ended
//
//   worker -> daemon   PeerHello, from another server's worker that the client has introduced
//   daemon -> worker   the socket and the PeerHello, to the worker that it names
//   worker -> worker   PeerWelcome or Refusal, then both make a Link
//
// Further sockets of a Link between workers begin with a PeerHello too.
//
// A client on the server's own machine that connects by TCP first proves its user
// (docs/security.md):
//
//   client -> daemon   over the local socket: TicketQuery, which names the TCP connection
//   daemon -> client   over the local socket: Ticket, and the end of that connection; or Refusal
//   client -> daemon   over the TCP connection: Ticket, then Hello or StatusQuery
//
// A client on another machine begins with a TLS handshake (common/tls/handshake.h). The door, a
// process of the server that knows no secret, makes this handshake (server/door/door.h). Over TLS,
// client and daemon then prove their identities (common/tls/proof.h):
//
//   daemon -> client   Challenge: a nonce, and the server's certificate and signature
//   client -> daemon   Authenticate: by a token, a certificate, or a MUNGE credential
//   daemon -> client   Authenticated, for MUNGE with the daemon's own credential; or Refusal
//   client -> daemon   Hello or StatusQuery
//   daemon -> client   Queued, as above; then Assigned, which ends this TLS connection
//   both               client and worker begin another TLS connection on the same socket, with the
//                      session's key (common/tls/keyed.h). It carries Welcome and the Link.
//                      Further sockets of the session begin with Attach, then do the same
//
// message_io.h has the framing, message.h the encoding. Plain values.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/identity/certificate.h"
#include "common/messages/message.h"
#include "common/wire/address_window.h"

namespace rcuda::wire {

// The time between two Queued messages. A client may abandon a server that sends nothing for a few
// of these intervals.
inline constexpr std::chrono::seconds kQueuedInterval{1};

// The longest name of a medium. Media are sent by name, and a side that does not have the requested
// medium refuses it.
inline constexpr size_t kMaxMediumName = 32;

struct Hello {
  static constexpr char kName[] = "Hello";
  uint64_t protocol_hash = 0;      // protocol_hash(): the same on both sides; stays first
  std::vector<uint32_t> commands;  // api::command_hashes()
  std::string medium;              // transport::Medium::name(); never empty
  // If the user did not choose the medium: the medium to use if the worker refuses `medium` or
  // making the Link over it fails. Empty: none.
  std::string fallback;
  uint32_t pid = 0, uid = 0;
  std::string host, program;  // for the server's log
  std::string user;
  uint8_t session[16] = {};       // random, the same for all servers of one client process
  std::vector<uint32_t> devices;  // ordinals on that server, in the client's order
  // Addresses that the worker must not allocate: the client's own, and the windows of its other
  // workers.
  std::vector<AddressWindow> taken;
  uint32_t worker = 0;   // index of this worker among the client's workers, from 0
  uint32_t servers = 0;  // the number of workers that the client will have
  // Counts the client's devices on this server, and on the client's servers that have not sent a
  // Welcome yet.
  uint32_t devices_left = 0;
  std::string p2p_strategy, p2p_path;  // RCUDA_P2P_STRATEGY and RCUDA_P2P_PATH of the client
  // How long the client waits in the server's queue (RCUDA_WAIT). 0: it does not wait.
  uint32_t wait_ms = 0;
  // How long a session waits for lost sockets (RCUDA_RECONNECT). 0: a lost socket ends the session.
  uint32_t reconnect_ms = 0;
  std::string lease;  // the id of the lease for these devices; empty: none
  // With `lease`: tls::lease_proof() for this connection; zero: none. The daemon does not pass it
  // to the worker.
  uint8_t lease_proof[32] = {};
};

struct Queued {
  static constexpr char kName[] = "Queued";
  // From 1, among the clients that wait for these devices. 0: the client is not in this queue; it
  // waits for a worker, or for a session that is ending.
  uint32_t place = 0;
  std::string reason;  // if `place` is not 0: the resource that is in use
};

// Opens a further socket of a session.
struct Attach {
  static constexpr char kName[] = "Attach";
  uint8_t session[8] = {};  // attach_name() of Welcome's token, which names the session
  uint8_t token[16] = {};   // attach_token() of Welcome's token, index and attempt
  uint32_t index = 0;
  // 0: this is the first socket with its index. Otherwise the socket replaces a lost socket. Each
  // attempt has a higher number than the attempts before, so a token is valid once.
  uint32_t attempt = 0;
};

// A worker sends a PeerHello to the daemon of another worker of its client. `session` is a hash of
// the session's id (session_name() of socket_keys.h), by which the daemon finds the other worker.
// The daemon passes the connection on to that worker. If the client requires encryption, both
// workers then encrypt the connection with a key that only the client and its servers can derive.
// The token that the client gave both workers authorises the connection
// (p2p/link/authentication.h).
struct PeerHello {
  static constexpr char kName[] = "PeerHello";
  uint8_t session[16] = {};  // session_name() of Hello::session
  uint32_t worker = 0;       // the worker to reach: its Hello::worker in that session
  uint32_t link = 0;         // the client's name for this connection
  uint32_t stream = 0;       // 0: the Link's control socket; from 1: its further sockets
  std::string medium;        // as in Hello
  uint32_t attempt = 0;      // as Attach::attempt; if it is not 0, the answer is Attached
  uint8_t token[16] = {};    // if `attempt` is not 0: peer_attach_token()
};

// An IP address and port. An IPv4 address is stored as ::ffff:a.b.c.d.
struct Endpoint {
  uint8_t address[16] = {};
  uint16_t port = 0;
  bool operator==(const Endpoint&) const = default;
};

// Requests a ticket for one TCP connection. Contains the addresses of its two ends, as the client
// sees them.
struct TicketQuery {
  static constexpr char kName[] = "TicketQuery";
  Endpoint client, server;
};

// Valid once, and only on the TCP connection that the TicketQuery named.
struct Ticket {
  static constexpr char kName[] = "Ticket";
  uint8_t secret[32] = {};
};

enum class Method : uint32_t { kToken = 1, kCertificate = 2, kMunge = 3 };

struct Challenge {
  static constexpr char kName[] = "Challenge";
  uint8_t nonce[32] = {};
  identity::Chain chain;  // the server's certificates
  std::string signature;  // tls::sign() of the server
};

struct Authenticate {
  static constexpr char kName[] = "Authenticate";
  Method method{};
  std::string id;          // kToken: the token's id
  uint8_t mac[32] = {};    // kToken: tls::token_proof()
  identity::Chain chain;   // kCertificate: the client's certificates
  std::string signature;   // kCertificate: tls::sign() of the client
  std::string credential;  // kMunge: a credential with the payload munge_payload()
};

struct Authenticated {
  static constexpr char kName[] = "Authenticated";
  std::string credential;  // kMunge: the daemon's credential; otherwise empty
};

struct DeviceInfo {
  std::string name;
  std::string pci_bus_id;
  uint8_t uuid[16] = {};
  uint64_t total_bytes = 0;
  uint32_t ordinal = 0;             // on the worker: index among the session's devices
  std::vector<int32_t> attributes;  // by CUdevice_attribute; INT32_MIN: not supported
  // For each device of the session, itself included: its CUdevice_P2PAttribute 1 to 4.
  std::vector<int32_t> peer_attributes;
};

struct Welcome {
  static constexpr char kName[] = "Welcome";
  uint8_t token[16] = {};
  uint32_t driver_version = 0;
  uint32_t worker_pid = 0;
  std::string server;                  // host name, for messages
  std::vector<AddressWindow> windows;  // all device addresses of this worker
  uint64_t staging_bytes = 0;
  uint32_t priority_least = 0;
  int32_t priority_greatest = 0;
  std::vector<DeviceInfo> devices;
  // Opcodes of the client's commands that the worker lacks, or whose layout differs in the worker.
  std::vector<uint32_t> lacking;
  std::string fell_back;  // why the session uses Hello::fallback; empty: it uses Hello::medium
  // How long a session over tcp waits for lost sockets: Hello::reconnect_ms, or less if the server
  // allows less. 0: a lost socket ends the session.
  uint32_t reconnect_ms = 0;
};

struct Refusal {
  static constexpr char kName[] = "Refusal";
  uint32_t code = 0;   // rcuda::Code
  std::string reason;  // one sentence that includes the remedy
};

// The payload of a MUNGE credential. It binds the credential to one connection: `nonce` is the
// connection's binding (common/tls/proof.h). So the credential is invalid on another connection.
enum class MungeSide : uint8_t { kClient, kServer };
std::vector<std::byte> munge_payload(MungeSide side, const uint8_t (&nonce)[32]);
bool is_munge_payload(const std::vector<std::byte>& payload, MungeSide side,
                      const uint8_t (&nonce)[32]);

extern template struct Codec<Hello>;
extern template struct Codec<Queued>;
extern template struct Codec<Attach>;
extern template struct Codec<PeerHello>;
extern template struct Codec<TicketQuery>;
extern template struct Codec<Ticket>;
extern template struct Codec<Challenge>;
extern template struct Codec<Authenticate>;
extern template struct Codec<Authenticated>;
extern template struct Codec<Welcome>;
extern template struct Codec<Refusal>;

// Reads Hello::protocol_hash, with which the Hello of every protocol begins.
Result<uint64_t> protocol_hash_of_hello(const std::vector<std::byte>& body);

}  // namespace rcuda::wire
