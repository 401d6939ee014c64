#include "p2p/link/authentication.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

namespace rcuda::p2p {

Result<Nonce> make_nonce() {
  Nonce nonce;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), nonce.size()) != 1) {
    return Status(Code::kInternal,
                  "OpenSSL cannot make a random number for the Challenge to a peer worker");
  }
  return nonce;
}

Proof make_proof(const SessionToken& token, bool connected, const Nonce& own, const Nonce& peer) {
  struct {
    char purpose[12] = "rcuda-p2p";
    uint32_t role = 0;
    Nonce own{};
    Nonce peer{};
  } text;
  static_assert(sizeof text == 16 + 2 * sizeof(Nonce));
  text.role = connected ? 1 : 0;
  text.own = own;
  text.peer = peer;
  Proof proof{};
  unsigned length = 0;
  HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
       reinterpret_cast<const unsigned char*>(&text), sizeof text,
       reinterpret_cast<unsigned char*>(proof.data()), &length);
  return proof;
}

bool proof_holds(const Proof& expected, const Proof& received) {
  return CRYPTO_memcmp(expected.data(), received.data(), expected.size()) == 0;
}

}  // namespace rcuda::p2p
