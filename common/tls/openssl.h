// Functions for all users of OpenSSL in this folder. Any thread; nothing blocks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <openssl/bio.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "common/base/status.h"
#include "common/tls/connection.h"

namespace rcuda::tls {

class RecordBuffer;

struct Free {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL_SESSION* session) const { SSL_SESSION_free(session); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_STORE* store) const { X509_STORE_free(store); }
  void operator()(X509_STORE_CTX* context) const { X509_STORE_CTX_free(context); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  void operator()(BIO* bio) const { BIO_free(bio); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

// Call it before every other function of OpenSSL in a process that uses this folder.
void initialise();
// Returns a context for TLS 1.3 only, which prefers AES-128-GCM. Calls initialise().
Result<Owned<SSL_CTX>> make_context(const SSL_METHOD* method);
// Returns kDenied with `what` and OpenSSL's reason. Clears the thread's error queue.
Status ssl_error(const std::string& what);
// Checks a chain, whose first certificate is the peer's: it must lead to one of `authorities`, and
// its names, times, length and purpose ("ssl_client", "ssl_server") must be valid. `set` sets
// further parameters and returns 1. If the chain is not valid, returns kDenied with the reason.
Status check_chain(
    const std::vector<Owned<X509>>& chain, X509_STORE* authorities, const char* purpose,
    const std::function<int(X509_VERIFY_PARAM*)>& set = [](X509_VERIFY_PARAM*) { return 1; });
// Returns a BIO that receives and sends through a RecordBuffer; null if there is no memory.
BIO* make_bio(RecordBuffer* buffer);

}  // namespace rcuda::tls
