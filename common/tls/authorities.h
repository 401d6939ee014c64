// Authorities: those whose certificates clients may present to a daemon.
//
// No parser of X.509 sees bytes of strangers: a strict reader of DER splits a certificate into the
// signed part, the algorithm and the signature. The certificate is parsed only after an authority's
// signature of it has been verified. Certificates between authority and client come in the order of
// TLS, each signed by the next, and are checked from the authority down.
//
// Threads: any. Blocking: read() reads a file. Fuzzer: tests/fuzz/chain_target.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/tls/openssl.h"
#include "common/tls/proof.h"

namespace rcuda::tls {

class Authorities {
 public:
  // `file`: a PEM file. kInvalidArgument if it is not usable.
  static Result<std::shared_ptr<const Authorities>> read(const std::string& file);

  // The user's name (CN) in the client's certificate, with whose key the client has signed the
  // binding. kDenied with the reason.
  Result<std::string> check_client(const identity::Chain& chain, const std::string& signature,
                                   const Key& binding) const;

 private:
  std::vector<Owned<X509>> read_signed(const identity::Chain& chain) const;

  Owned<X509_STORE> store_;
  std::vector<Owned<X509>> certificates_;
};

}  // namespace rcuda::tls
