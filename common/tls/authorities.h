// Authorities: the certificate authorities that a daemon accepts for its clients.
//
// Bytes without a valid signature do not reach an X.509 parser: a strict reader of DER splits a
// certificate into the signed part, the algorithm and the signature. The certificate is parsed only
// after its signature has been verified. The chain has the order of TLS: each certificate is signed
// by the next, the last by an authority. The chain is checked from the authority's end.
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

  // Returns the user's name (CN) in the client's certificate. kDenied with the reason, also if the
  // signature of the binding was not made with the certificate's key.
  Result<std::string> check_client(const identity::Chain& chain, const std::string& signature,
                                   const Key& binding) const;

 private:
  std::vector<Owned<X509>> read_signed(const identity::Chain& chain) const;

  Owned<X509_STORE> store_;
  std::vector<Owned<X509>> certificates_;
};

}  // namespace rcuda::tls
