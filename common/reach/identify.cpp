#include "common/reach/identify.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <unistd.h>

#include "common/base/host_port.h"
#include "common/identity/munge.h"
#include "common/identity/token_file.h"
#include "common/messages/lease_messages.h"
#include "common/messages/refusal.h"
#include "common/reach/same_host.h"
#include "common/tls/handshake.h"
#include "common/tls/keyed.h"
#include "common/tls/proof.h"

namespace rcuda::wire {
namespace {

using Clock = std::chrono::steady_clock;

// Returns the error for a user without credentials. `here`: the address is this machine's.
// `tokens`: the text of describe_tokens().
Status no_credentials(const std::string& where, bool here, const std::string& tokens) {
  const std::string wrong_port = "no rcuda-server of this machine has the port of " + where +
                                 " (ss -xl shows @rcuda-PORT of each server): correct the port. If "
                                 "the port leads through a tunnel or a proxy to a server, the "
                                 "server needs credentials, and ";
  return Status(Code::kDenied,
                (here ? wrong_port : std::string()) +
                    "this user has no credentials for the server " + where + " (" + tokens +
                    "): ask its administrator for a token (rcuda-token create, on the server) and "
                    "add it here (rcuda-token add), or run munged with the same key on both "
                    "machines, or set RCUDA_TLS_CERTIFICATE and RCUDA_TLS_AUTHORITIES. For a "
                    "server that was started with --insecure, set RCUDA_SECURITY=none");
}

Result<std::vector<std::byte>> read_answer(const Socket& socket, MessageType wanted,
                                           Clock::time_point deadline) {
  auto answer = read_message(socket, deadline);
  if (!answer) return no_server(answer.status());
  if (answer->first == MessageType::kRefusal) {
    return refusal_error(answer->second, "the server refused this connection", Code::kDenied);
  }
  if (answer->first != wanted) {
    return Status(Code::kProtocol,
                  "the server sent message type " +
                      std::to_string(static_cast<uint32_t>(answer->first)) + " instead of " +
                      std::to_string(static_cast<uint32_t>(wanted)) +
                      " while it identified this user: install the same build of rcuda on both "
                      "sides");
  }
  return std::move(answer->second);
}

Result<Authenticated> authenticate(const Socket& socket, const Authenticate& message,
                                   Clock::time_point deadline) {
  RCUDA_RETURN_IF_ERROR(
      write_message(socket, MessageType::kAuthenticate, encode(message), deadline));
  RCUDA_ASSIGN_OR_RETURN(const auto body,
                         read_answer(socket, MessageType::kAuthenticated, deadline));
  return decode<Authenticated>(body);
}

// Proves this process's user by a MUNGE credential, and checks the server's credential.
Status exchange_credentials(const Socket& socket, const tls::Key& binding,
                            const identity::munge::Settings& settings,
                            const std::vector<uid_t>& trusted, Clock::time_point deadline) {
  uint8_t nonce[32];
  std::copy(binding.begin(), binding.end(), nonce);
  Authenticate message;
  message.method = Method::kMunge;
  // Any user may decode the credential, because the client does not know the server's user.
  RCUDA_ASSIGN_OR_RETURN(
      std::string own,
      identity::munge::encode(munge_payload(MungeSide::kClient, nonce), {}, settings));
  message.credential = std::move(own);
  RCUDA_ASSIGN_OR_RETURN(const Authenticated answer, authenticate(socket, message, deadline));
  RCUDA_ASSIGN_OR_RETURN(const auto server, identity::munge::decode(answer.credential, settings)
                                                .with_context("the server's MUNGE credential"));
  if (!is_munge_payload(server.payload, MungeSide::kServer, nonce)) {
    return Status(Code::kDenied,
                  "the server's MUNGE credential is for another connection: another machine relays "
                  "the connection to the server");
  }
  return check_trust("the server", server.uid, ::geteuid(), trusted);
}

// How this client identifies itself under TLS: by a token, else by a certificate, else by MUNGE.
struct Plan {
  Method method{};
  std::optional<identity::Token> token;
  std::optional<identity::Certificate> certificate;
  tls::ServerCheck check;
};

Result<Plan> plan_for(const Connection& connection, const std::string& host, uint16_t port,
                      const Credentials& credentials, const identity::munge::Settings& munge) {
  Plan plan;
  RCUDA_ASSIGN_OR_RETURN(plan.token,
                         identity::find_token(credentials.token_file.get(), host, port));
  plan.check.authorities = credentials.authorities.get();
  plan.check.host = host;
  if (plan.token) {
    plan.method = Method::kToken;
    plan.check.pinned = plan.token->fingerprint;
  } else if (const std::string& file = credentials.certificate.get(); !file.empty()) {
    plan.method = Method::kCertificate;
    RCUDA_ASSIGN_OR_RETURN(plan.certificate, identity::load_certificate(file));
    if (plan.check.authorities.empty()) {
      return Status(Code::kInvalidArgument,
                    "RCUDA_TLS_CERTIFICATE is set without RCUDA_TLS_AUTHORITIES: set both, so that "
                    "the server's certificate can be checked");
    }
  } else if (identity::munge::available(munge)) {
    plan.method = Method::kMunge;
  } else {
    const Result<Endpoint> server = peer_endpoint(connection.socket.fd());
    const Result<bool> here = server ? any_on_this_machine({&*server, 1}) : server.status();
    return no_credentials(host_and_port(host, port), here && *here,
                          identity::describe_tokens(credentials.token_file.get()));
  }
  return plan;
}

// Checks the server by `check`, and returns the binding for the proofs (tls/proof.h).
Result<tls::Key> check_challenge(const Socket& socket, const tls::Key& exported,
                                 const tls::ServerCheck& check, Clock::time_point deadline) {
  RCUDA_ASSIGN_OR_RETURN(const auto body, read_answer(socket, MessageType::kChallenge, deadline));
  RCUDA_ASSIGN_OR_RETURN(const Challenge challenge, decode<Challenge>(body));
  const tls::Key binding = tls::binding_of(challenge.nonce, exported);
  RCUDA_RETURN_IF_ERROR(tls::check_server(challenge.chain, challenge.signature, binding, check));
  return binding;
}

Status identify_under_tls(Connection* connection, const std::string& host, uint16_t port,
                          const Credentials& credentials, const identity::munge::Settings& munge,
                          Clock::time_point deadline) {
  RCUDA_ASSIGN_OR_RETURN(const Plan plan, plan_for(*connection, host, port, credentials, munge));
  auto made = tls::connect(connection->socket.fd(), deadline);
  if (!made) return no_server(made.status());
  connection->key = (*made)->exported(tls::kSessionLabel);
  const tls::Key exported = (*made)->exported(tls::kProofLabel);
  connection->socket = Socket(connection->socket.release(), std::move(*made));
  Result<tls::Key> binding = check_challenge(connection->socket, exported, plan.check, deadline);
  if (plan.token && binding.status().code() == Code::kDenied) {
    return Status(binding.status())
        .with_context("checking the server by the token " + plan.token->id + " (" +
                      identity::describe_tokens(credentials.token_file.get()) + ")");
  }
  RCUDA_RETURN_IF_ERROR(binding.status());
  connection->binding = *binding;
  if (plan.method == Method::kMunge) {
    return exchange_credentials(connection->socket, *binding, munge, credentials.trusted.get(),
                                deadline);
  }
  Authenticate message;
  message.method = plan.method;
  if (plan.token) {
    RCUDA_ASSIGN_OR_RETURN(const identity::Hash secret, identity::hash_of(plan.token->secret));
    const tls::Key mac = tls::token_proof(secret, *binding);
    message.id = plan.token->id;
    std::copy(mac.begin(), mac.end(), message.mac);
  } else {
    message.chain = plan.certificate->chain;
    message.signature = tls::sign(*plan.certificate, tls::Role::kClient, *binding);
  }
  return authenticate(connection->socket, message, deadline).status();
}

Security security_of(const Credentials& credentials) {
  const std::string_view word = credentials.security.get();
  if (word == "tls") return Security::kTls;
  return word == "none" ? Security::kNone : Security::kAuto;
}

}  // namespace

Status identify(Connection* connection, const std::string& host, uint16_t port,
                const Credentials& credentials, Clock::time_point deadline) {
  const Security security = security_of(credentials);
  connection->must_encrypt = security == Security::kTls;
  if (security == Security::kAuto) {
    RCUDA_ASSIGN_OR_RETURN(
        const bool presented,
        present_ticket(connection->socket.fd(), credentials.trusted.get(), deadline));
    if (presented) return {};
  }
  if (security == Security::kNone) return {};
  identity::munge::Settings munge;
  munge.socket = credentials.munge_socket.get();
  return identify_under_tls(connection, host, port, credentials, munge, deadline);
}

Status present_lease(const std::string& host, uint16_t port, const Credentials& credentials,
                     const tls::Key& binding, Hello* hello) {
  RCUDA_ASSIGN_OR_RETURN(const std::vector<LeaseKey> keys,
                         parse_lease_keys(credentials.lease.get()));
  const std::optional<LeaseKey> key = find_lease_key(keys, host, port);
  if (!key) return {};
  if (key->host.empty() && key->secret != kNoLeaseSecret) {
    return Status(
        Code::kInvalidArgument,
        "RCUDA_LEASE gives the secret of the lease " + key->id +
            " without naming its server, so every server of RCUDA_DEVICES would get the secret: "
            "write host[@port]=ID:SECRET, as \"rcuda-lease take\" prints it");
  }
  hello->lease = key->id;
  if (key->secret == kNoLeaseSecret) return {};
  std::ranges::copy(tls::lease_proof(key->secret, binding), hello->lease_proof);
  return {};
}

}  // namespace rcuda::wire
