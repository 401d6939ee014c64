// Proofs: how the two ends of a TLS connection (handshake.h) prove their identity to each other.
//
// The handshake itself proves nothing: the server's end may be another process than the one that
// has the key (server/door/door.h). Instead, the server sends a fresh nonce. The binding combines
// this nonce with this connection. Each side proves that it has a secret, by a MAC or a signature
// over the binding:
//
//   binding   HMAC-SHA-256 of Connection::exported(kProofLabel), with the nonce as the key
//   server    a signature of its certificate's key (Challenge in common/messages/handshake.h)
//   client    a signature of its certificate's key, a MAC by its token, or a MUNGE credential; for
//             a lease also a MAC by the lease's secret
//
// A signature is over a text that names the signer's side and then has the binding. So a proof is
// valid on this connection and for this side only.
//
// Threads: any. Blocking: check_server() reads a file.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/base/status.h"
#include "common/identity/certificate.h"
#include "common/identity/token.h"
#include "common/tls/connection.h"

namespace rcuda::tls {

// Returns the binding of a connection. `exported`: Connection::exported(kProofLabel).
Key binding_of(const uint8_t (&nonce)[32], const Key& exported);

// Signs the binding for `side`. Returns an empty text if OpenSSL fails.
std::string sign(const identity::Certificate& signer, Role side, const Key& binding);
// Whether the key made this signature of the text.
bool verify(evp_pkey_st* key, const char* digest, std::span<const uint8_t> text,
            std::span<const uint8_t> signature);
// Whether the key of the certificate made this signature, as sign() does.
bool has_signed(const x509_st* certificate, Role side, const Key& binding,
                const std::string& signature);

// Returns the MAC that proves a client's token. `secret_hash`: identity::hash_of() of its secret.
Key token_proof(const identity::Hash& secret_hash, const Key& binding);
// Returns the MAC that proves a lease's secret. Without TLS the binding is zero: a peer that reads
// the proof could then use it again, like the secret itself.
Key lease_proof(const std::array<uint8_t, 16>& secret, const Key& binding);

// How a client checks the server's certificate. With `pinned` and `authorities` empty, any server
// is accepted, and the caller must check it in another way (MUNGE).
struct ServerCheck {
  std::optional<identity::Hash> pinned;  // the server's fingerprint, from a token
  // PEM file of authorities. The server's chain must lead to one of them, and its certificate must
  // be for `host`.
  std::string authorities;
  std::string host;
};
// Checks the server's certificate and signature. Returns kDenied with the reason if the peer is not
// this server.
Status check_server(const identity::Chain& chain, const std::string& signature, const Key& binding,
                    const ServerCheck& check);

}  // namespace rcuda::tls
