#include "common/tls/proof.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <arpa/inet.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include "common/tls/keyed.h"
#include "common/tls/openssl.h"

namespace rcuda::tls {
namespace {

constexpr size_t kMostSignatureBytes = 2048;

std::vector<uint8_t> signed_text(Role side, const Key& binding) {
  const std::string_view who = side == Role::kServer ? "rcuda server" : "rcuda client";
  std::vector<uint8_t> text(who.size() + binding.size());
  std::ranges::copy(binding, std::ranges::copy(who, text.begin()).out);
  return text;
}

// Returns null for keys whose algorithm fixes the digest.
const char* digest_of(EVP_PKEY* key) {
  return EVP_PKEY_is_a(key, "ED25519") || EVP_PKEY_is_a(key, "ED448") ? nullptr : "SHA256";
}

Owned<X509> parse(const std::string& der) {
  const auto* data = reinterpret_cast<const unsigned char*>(der.data());
  return Owned<X509>(d2i_X509(nullptr, &data, static_cast<long>(der.size())));
}

// Asks OpenSSL to check the chain, and the host's name or address in the certificate.
Status check_authority(const std::vector<Owned<X509>>& chain, const ServerCheck& check) {
  const Owned<X509_STORE> store(X509_STORE_new());
  if (!store || X509_STORE_load_file(store.get(), check.authorities.c_str()) != 1) {
    return ssl_error("cannot use the certificates of authorities in " + check.authorities);
  }
  const char* const host = check.host.c_str();
  unsigned char address[16];
  const bool is_address =
      ::inet_pton(AF_INET, host, address) == 1 || ::inet_pton(AF_INET6, host, address) == 1;
  return check_chain(chain, store.get(), "ssl_server", [&](X509_VERIFY_PARAM* parameters) {
    return is_address ? X509_VERIFY_PARAM_set1_ip_asc(parameters, host)
                      : X509_VERIFY_PARAM_set1_host(parameters, host, check.host.size());
  });
}

}  // namespace

Key binding_of(const uint8_t (&nonce)[32], const Key& exported) {
  Key key;
  std::copy(std::begin(nonce), std::end(nonce), key.begin());
  return derive(key, {reinterpret_cast<const char*>(exported.data()), exported.size()});
}

std::string sign(const identity::Certificate& signer, Role side, const Key& binding) {
  const std::vector<uint8_t> text = signed_text(side, binding);
  EVP_PKEY* const key = signer.key.get();
  const Owned<EVP_MD_CTX> context(EVP_MD_CTX_new());
  std::string signature(kMostSignatureBytes, '\0');
  size_t bytes = signature.size();
  const bool done =
      context &&
      EVP_DigestSignInit_ex(context.get(), nullptr, digest_of(key), nullptr, nullptr, key,
                            nullptr) == 1 &&
      EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &bytes,
                     text.data(), text.size()) == 1;
  ERR_clear_error();
  signature.resize(done ? bytes : 0);
  return signature;
}

bool verify(EVP_PKEY* key, const char* digest, std::span<const uint8_t> text,
            std::span<const uint8_t> signature) {
  const Owned<EVP_MD_CTX> context(EVP_MD_CTX_new());
  const bool good = key && context &&
                    EVP_DigestVerifyInit_ex(context.get(), nullptr, digest, nullptr, nullptr, key,
                                            nullptr) == 1 &&
                    EVP_DigestVerify(context.get(), signature.data(), signature.size(), text.data(),
                                     text.size()) == 1;
  ERR_clear_error();
  return good;
}

bool has_signed(const X509* certificate, Role side, const Key& binding,
                const std::string& signature) {
  EVP_PKEY* const key = X509_get0_pubkey(certificate);
  const auto* const data = reinterpret_cast<const uint8_t*>(signature.data());
  return key && verify(key, digest_of(key), signed_text(side, binding), {data, signature.size()});
}

Key token_proof(const identity::Hash& secret_hash, const Key& binding) {
  const std::vector<uint8_t> text = signed_text(Role::kClient, binding);
  return derive(secret_hash, {reinterpret_cast<const char*>(text.data()), text.size()});
}

Key lease_proof(const std::array<uint8_t, 16>& secret, const Key& binding) {
  Key key{};
  std::ranges::copy(secret, key.begin());
  std::string text = "rcuda lease";
  text.append(reinterpret_cast<const char*>(binding.data()), binding.size());
  return derive(key, text);
}

Status check_server(const identity::Chain& chain, const std::string& signature, const Key& binding,
                    const ServerCheck& check) {
  initialise();
  std::vector<Owned<X509>> certificates;
  for (const auto& [der] : chain) certificates.push_back(parse(der));
  if (certificates.empty() ||
      std::ranges::any_of(certificates, [](const auto& one) { return !one; })) {
    return ssl_error("the server presented no usable certificate");
  }
  const X509* const own = certificates.front().get();
  if (check.pinned) {
    RCUDA_ASSIGN_OR_RETURN(const identity::Hash seen, identity::fingerprint_of(own));
    if (CRYPTO_memcmp(seen.data(), check.pinned->data(), seen.size()) != 0) {
      return Status(
          Code::kDenied,
          "the server does not have the key that the token names: the token is another server's, "
          "or this server's key was replaced; ask its administrator for a token (rcuda-token "
          "create, on the server) and add it (rcuda-token add)");
    }
  } else if (!check.authorities.empty()) {
    RCUDA_RETURN_IF_ERROR(check_authority(certificates, check));
  }
  if (has_signed(own, Role::kServer, binding, signature)) return {};
  return Status(Code::kDenied,
                "the server does not have the key of its certificate: another process intercepts "
                "the connection");
}

}  // namespace rcuda::tls
