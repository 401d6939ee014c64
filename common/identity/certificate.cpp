#include "common/identity/certificate.h"

#include <algorithm>
#include <climits>
#include <ctime>

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>

#include "common/base/units.h"
#include "common/identity/encoding.h"
#include "common/identity/private_file.h"

namespace rcuda::identity {
namespace {

constexpr size_t kMostBytes = 1 << 20;
constexpr size_t kMostCommonName = 64;  // the limit of X.520

using Bio = std::unique_ptr<BIO, decltype([](BIO* bio) { BIO_free(bio); })>;

// Returns an error with the cause, which is the first entry of the thread's queue of OpenSSL
// errors. Empties the queue.
Status openssl_error(Code code, const std::string& what) {
  char text[256] = "no reason given";
  if (const unsigned long error = ERR_get_error(); error != 0) {
    ERR_error_string_n(error, text, sizeof text);
  }
  ERR_clear_error();
  return Status(code, what + " (OpenSSL: " + text + ")");
}

// An encrypted key must not make OpenSSL ask for a password at the terminal.
int no_password(char*, int, int, void*) { return -1; }

Bio reader_of(std::string_view text) {
  return Bio(
      BIO_new_mem_buf(text.data(), static_cast<int>(std::min<size_t>(text.size(), INT_MAX))));
}

bool set_name(X509* x509, const std::string& host) {
  const std::string name = host.empty() ? "rcuda-server" : host.substr(0, kMostCommonName);
  X509_NAME* subject = X509_get_subject_name(x509);
  return X509_NAME_add_entry_by_NID(subject, NID_commonName, MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(name.data()),
                                    static_cast<int>(name.size()), -1, 0) == 1 &&
         X509_set_issuer_name(x509, subject) == 1;
}

bool set_serial(X509* x509) {
  unsigned char bytes[16];
  if (RAND_bytes(bytes, sizeof bytes) != 1) return false;
  bytes[0] = (bytes[0] & 0x7f) | 0x40;  // a positive number of full length
  const std::unique_ptr<BIGNUM, decltype([](BIGNUM* number) { BN_free(number); })> number(
      BN_bin2bn(bytes, sizeof bytes, nullptr));
  return number && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(x509)) != nullptr;
}

// Makes the certificate valid from a day ago, for clients whose clock is late, to RFC 5280's date
// for "no end".
bool set_validity(X509* x509) {
  constexpr long kDay = 24 * 60 * 60;
  return X509_gmtime_adj(X509_getm_notBefore(x509), -kDay) != nullptr &&
         ASN1_TIME_set_string_X509(X509_getm_notAfter(x509), "99991231235959Z") == 1;
}

// Takes ownership of `x509`.
Status add_to_chain(X509* x509, Certificate* parsed) {
  std::unique_ptr<X509, FreeOpenSsl> one(x509);
  if (parsed->chain.size() == kMostCertificates) {
    return {Code::kInvalidArgument,
            "the file has more than " + std::to_string(kMostCertificates) + " certificates"};
  }
  unsigned char* der = nullptr;
  const int size = i2d_X509(x509, &der);
  if (size <= 0) {
    return openssl_error(Code::kInvalidArgument,
                         "the file has a certificate that OpenSSL cannot convert to DER");
  }
  parsed->chain.push_back({std::string(reinterpret_cast<char*>(der), static_cast<size_t>(size))});
  OPENSSL_free(der);
  size_t bytes = 0;
  for (const DerCertificate& each : parsed->chain) bytes += each.der.size();
  if (bytes > kMostChainBytes) {
    return {Code::kInvalidArgument, "the file's certificates have " + exact_bytes_text(bytes) +
                                        " or more; the limit is " +
                                        exact_bytes_text(kMostChainBytes)};
  }
  if (!parsed->x509) parsed->x509 = std::move(one);
  return {};
}

Result<std::string> to_pem(const Certificate& certificate) {
  const Bio pem(BIO_new(BIO_s_mem()));
  if (!pem || PEM_write_bio_X509(pem.get(), certificate.x509.get()) != 1 ||
      PEM_write_bio_PrivateKey(pem.get(), certificate.key.get(), nullptr, nullptr, 0, nullptr,
                               nullptr) != 1) {
    return openssl_error(Code::kInternal, "cannot write a certificate as PEM");
  }
  char* data = nullptr;
  const long size = BIO_get_mem_data(pem.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

}  // namespace

void FreeOpenSsl::operator()(x509_st* certificate) const { X509_free(certificate); }
void FreeOpenSsl::operator()(evp_pkey_st* key) const { EVP_PKEY_free(key); }

Result<Certificate> parse_certificate(std::string_view pem) {
  Certificate parsed;
  // Reads the text twice, because certificates and key may be in any order.
  if (const Bio bio = reader_of(pem)) {
    while (X509* const next = PEM_read_bio_X509(bio.get(), nullptr, no_password, nullptr)) {
      RCUDA_RETURN_IF_ERROR(add_to_chain(next, &parsed));
    }
  }
  const unsigned long end = ERR_peek_last_error();
  if (ERR_GET_LIB(end) != ERR_LIB_PEM || ERR_GET_REASON(end) != PEM_R_NO_START_LINE) {
    return openssl_error(Code::kInvalidArgument, "the file has a certificate that cannot be read");
  }
  if (!parsed.x509) {
    return openssl_error(Code::kInvalidArgument, "the file has no certificate in PEM format");
  }
  ERR_clear_error();
  if (const Bio bio = reader_of(pem)) {
    parsed.key.reset(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr));
  }
  if (!parsed.key) {
    return openssl_error(Code::kInvalidArgument,
                         "the file has no private key that OpenSSL can read: add the key in PEM "
                         "format, without a password");
  }
  if (X509_check_private_key(parsed.x509.get(), parsed.key.get()) != 1) {
    return openssl_error(Code::kInvalidArgument,
                         "the file's private key belongs to another certificate");
  }
  return parsed;
}

Result<Certificate> load_certificate(const std::string& path) {
  RCUDA_ASSIGN_OR_RETURN(std::string pem, read_private_file(path, kMostBytes));
  Result<Certificate> parsed = parse_certificate(pem);
  OPENSSL_cleanse(pem.data(), pem.size());
  if (parsed.ok()) return parsed;
  return Status(parsed.status())
      .with_context(
          path +
          " is not usable: put a certificate and its key there (if you remove the file, a "
          "server makes a new certificate, and its clients need new tokens)");
}

Result<Certificate> make_certificate(const std::string& host) {
  Certificate made;
  made.key.reset(EVP_EC_gen("P-256"));
  made.x509.reset(X509_new());
  X509* const x509 = made.x509.get();
  if (made.key && x509 != nullptr && X509_set_version(x509, X509_VERSION_3) == 1 &&
      set_serial(x509) && set_validity(x509) && set_name(x509, host) &&
      X509_set_pubkey(x509, made.key.get()) == 1 &&
      X509_sign(x509, made.key.get(), EVP_sha256()) > 0) {
    return made;
  }
  return openssl_error(Code::kInternal, "cannot make a certificate for " + host);
}

Result<Certificate> load_or_make_certificate(const std::string& path, const std::string& host,
                                             bool* made_file) {
  if (made_file) *made_file = false;
  Result<Certificate> loaded = load_certificate(path);
  if (loaded.ok() || loaded.status().code() != Code::kNotFound) return loaded;
  RCUDA_ASSIGN_OR_RETURN(const Certificate made, make_certificate(host));
  RCUDA_ASSIGN_OR_RETURN(std::string pem, to_pem(made));
  RCUDA_RETURN_IF_ERROR(make_folders_above(path));
  const Result<bool> created = create_private_file(path, pem);
  OPENSSL_cleanse(pem.data(), pem.size());
  if (!created.ok()) return created.status();
  if (made_file) *made_file = *created;
  // Another process may have made the file first, so load it.
  return load_certificate(path);
}

Result<Hash> fingerprint_of(const x509_st* certificate) {
  unsigned char* der = nullptr;
  const int size = i2d_X509_PUBKEY(X509_get_X509_PUBKEY(certificate), &der);
  Hash hash;
  const bool done = size > 0 && EVP_Digest(der, static_cast<size_t>(size), hash.data(), nullptr,
                                           EVP_sha256(), nullptr) == 1;
  OPENSSL_free(der);
  if (!done) return openssl_error(Code::kInternal, "cannot hash a certificate's public key");
  return hash;
}

std::string fingerprint_text(const Certificate& certificate) {
  const Result<Hash> hash = fingerprint_of(certificate.x509.get());
  return hash.ok() ? to_base64url(*hash) : "unknown";
}

}  // namespace rcuda::identity
