// Makes certificate authorities and certificates for tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "common/identity/certificate.h"
#include "common/tls/openssl.h"

namespace rcuda::test {

struct Certified {
  tls::Owned<EVP_PKEY> key;
  tls::Owned<X509> x509;

  std::string certificate_pem() const {
    BIO* const bio = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(bio, x509.get());
    return text_of(bio);
  }
  std::string key_pem() const {
    BIO* const bio = BIO_new(BIO_s_mem());
    PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    return text_of(bio);
  }
  std::string pem() const { return certificate_pem() + key_pem(); }

 private:
  static std::string text_of(BIO* bio) {
    char* data = nullptr;
    const long bytes = BIO_get_mem_data(bio, &data);
    std::string text(data, static_cast<size_t>(bytes));
    BIO_free(bio);
    return text;
  }
};

enum class KeyKind { kP256, kP384, kRsa, kEd25519 };

inline EVP_PKEY* make_key(KeyKind kind) {
  switch (kind) {
    case KeyKind::kP256:
      return EVP_EC_gen("P-256");
    case KeyKind::kP384:
      return EVP_EC_gen("P-384");
    case KeyKind::kRsa:
      return EVP_RSA_gen(2048);
    case KeyKind::kEd25519:
      return EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519");
  }
  return nullptr;
}

// `issuer`: null for a self-signed certificate. `comment`: makes the certificate longer.
inline Certified make_certificate(const std::string& name, const Certified* issuer, bool is_ca,
                                  KeyKind kind = KeyKind::kP256, const std::string& comment = {}) {
  static long serial = 1;
  Certified made{tls::Owned<EVP_PKEY>(make_key(kind)), tls::Owned<X509>(X509_new())};
  X509* const x509 = made.x509.get();
  X509_set_version(x509, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(x509), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(x509), -3600);
  X509_gmtime_adj(X509_getm_notAfter(x509), 24 * 3600);
  X509_NAME_add_entry_by_NID(X509_get_subject_name(x509), NID_commonName, MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.data()),
                             static_cast<int>(name.size()), -1, 0);
  X509_set_issuer_name(x509, X509_get_subject_name(issuer ? issuer->x509.get() : x509));
  X509_set_pubkey(x509, made.key.get());
  const auto extend = [&](int what, const std::string& value) {
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, what, value.c_str());
    X509_add_ext(x509, extension, -1);
    X509_EXTENSION_free(extension);
  };
  if (is_ca) extend(NID_basic_constraints, "critical,CA:TRUE");
  if (!comment.empty()) extend(NID_netscape_comment, comment);
  EVP_PKEY* const signer = issuer ? issuer->key.get() : made.key.get();
  X509_sign(x509, signer, EVP_PKEY_is_a(signer, "ED25519") ? nullptr : EVP_sha256());
  return made;
}

// The result of load_certificate() for a file with the certificate `own`, its key and the
// intermediate certificates `rest`.
inline identity::Certificate signer(const Certified& own,
                                    const std::vector<const Certified*>& rest = {}) {
  std::string pem = own.pem();
  for (const Certified* one : rest) pem += one->certificate_pem();
  return std::move(identity::parse_certificate(pem)).value();
}

}  // namespace rcuda::test
