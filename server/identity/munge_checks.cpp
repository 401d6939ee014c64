#include "server/identity/munge_checks.h"

#include <algorithm>
#include <utility>

#include "common/messages/handshake.h"

namespace rcuda::server {
namespace {

Result<MungeChecks::Outcome> check(const std::string& credential, const tls::Key& key,
                                   const identity::munge::Settings& settings) {
  uint8_t nonce[32];
  std::copy(key.begin(), key.end(), nonce);
  const auto client = identity::munge::decode(credential, settings);
  if (!client.ok()) return Status(client.status()).with_context("the client's MUNGE credential");
  if (!wire::is_munge_payload(client->payload, wire::MungeSide::kClient, nonce)) {
    return Status(Code::kDenied,
                  "the client's MUNGE credential is for another connection: connect to the server "
                  "itself, not through a proxy that ends the TLS connection");
  }
  RCUDA_ASSIGN_OR_RETURN(
      std::string answer, identity::munge::encode(wire::munge_payload(wire::MungeSide::kServer, nonce),
                                                  client->uid, settings));
  return MungeChecks::Outcome{client->uid, std::move(answer)};
}

}  // namespace

Result<uint64_t> MungeChecks::begin(std::string credential, const tls::Key& nonce) {
  if (checks_.waiting() >= kMostWaiting) {
    return Status(Code::kUnavailable, "too many clients wait for the server's munged: try again");
  }
  const uint64_t number = ++last_;
  RCUDA_RETURN_IF_ERROR(
      checks_.ask(number, [credential = std::move(credential), nonce, settings = settings_] {
        return check(credential, nonce, settings);
      }));
  return number;
}

}  // namespace rcuda::server
