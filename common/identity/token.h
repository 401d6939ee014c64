// Token: the secret and the fingerprint with which a client uses a server over TLS, in one line of
// text.
//
//   rcuda1.<id>.<secret>.<fingerprint>
//
// The secret authenticates the client. The fingerprint is the SHA-256 of the public key of the
// server's certificate (its SubjectPublicKeyInfo in DER), by which the client checks the server.
// The id is not secret: logs, lists and errors name a token by it. The server keeps only the
// secret's hash (server/identity/token_store.h). Threads: any. Only new_token() may block, until
// the kernel has its first random numbers after boot. Errors contain no part of a token except its
// id.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace rcuda::identity {

using Secret = std::array<uint8_t, 32>;
using Hash = std::array<uint8_t, 32>;  // SHA-256

struct Token {
  std::string id;  // is_token_id(id) is true
  Secret secret{};
  Hash fingerprint{};
  bool operator==(const Token&) const = default;
};

// Whether the text is a token's id: eight lower-case hexadecimal digits.
bool is_token_id(std::string_view text);

std::string format(const Token& token);
// Accepts only texts that format() returns. Returns kInvalidArgument for all others.
Result<Token> parse_token(std::string_view text);

// Returns a token with a random id and secret.
Result<Token> new_token(const Hash& fingerprint);

// A secret has 256 random bits, so one pass of SHA-256 without salt is enough.
Result<Hash> hash_of(const Secret& secret);

}  // namespace rcuda::identity
