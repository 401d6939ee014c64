// Functions for all users of OpenSSL in this folder. Any thread; nothing blocks.
#pragma once

#include <memory>
#include <string>

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
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

// Must precede every other call of OpenSSL in a process that uses this folder.
void initialise();
// A context for TLS 1.3 only, with AES-128-GCM first. Calls initialise().
Result<Owned<SSL_CTX>> make_context(const SSL_METHOD* method);
// kDenied: `what` and OpenSSL's reason. Empties the thread's queue of errors.
Status ssl_error(const std::string& what);
// A BIO that receives and sends by a RecordBuffer. Null: no memory.
BIO* make_bio(RecordBuffer* buffer);

}  // namespace rcuda::tls
