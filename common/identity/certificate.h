// The certificate and the private key of a server or a client, in one PEM file that only the file's
// owner can read.
//
// A server without a certificate makes one: self-signed, EC P-256, without an end of validity. A
// client with a token checks the public key by its fingerprint, which is in the token (token.h), so
// neither an authority nor the host name matters to this client. Tokens stay valid if a certificate
// is renewed with the same key. An administrator may put another certificate and key into the file.
// Threads: any; processes that race get the same certificate. Blocking: for the file system. Errors
// name the file and the remedy. This header names two types of OpenSSL and includes none of its
// headers.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/identity/token.h"

struct x509_st;      // X509
struct evp_pkey_st;  // EVP_PKEY

namespace rcuda::identity {

struct FreeOpenSsl {
  void operator()(x509_st* certificate) const;
  void operator()(evp_pkey_st* key) const;
};

// A certificate in DER, as it is sent to the other side. A chain has the certificates of a PEM
// file: first the owner's, then the intermediate certificates up to an authority.
struct DerCertificate {
  std::string der;
};
using Chain = std::vector<DerCertificate>;
inline constexpr size_t kMostCertificates = 4;  // in a chain
// The limit for all certificates of a chain together: they must fit into a client's message.
inline constexpr uint32_t kMostChainBytes = 60u << 10;

struct Certificate {
  std::unique_ptr<x509_st, FreeOpenSsl> x509;
  std::unique_ptr<evp_pkey_st, FreeOpenSsl> key;  // the private key of x509
  Chain chain;                                    // begins with x509
};

// Reads the certificates and the first private key of a PEM text. kInvalidArgument if there is no
// certificate or no key, if the key is encrypted or is not the first certificate's key, if a
// certificate is damaged, or if the chain is too long.
Result<Certificate> parse_certificate(std::string_view pem);

// kNotFound if there is no such file; kDenied if other users have access to it.
Result<Certificate> load_certificate(const std::string& path);

// Makes the file and its folders if the file does not exist. `host` becomes the certificate's
// common name, for people who read it. `made`: whether this call made the file; may be null.
Result<Certificate> load_or_make_certificate(const std::string& path, const std::string& host,
                                             bool* made = nullptr);

// Makes a new key and its certificate. Stores neither.
Result<Certificate> make_certificate(const std::string& host);

// Returns the SHA-256 of the public key (SubjectPublicKeyInfo in DER), also of a peer's
// certificate.
Result<Hash> fingerprint_of(const x509_st* certificate);
// Returns the fingerprint as text, as in tokens, for messages.
std::string fingerprint_text(const Certificate& certificate);

}  // namespace rcuda::identity
