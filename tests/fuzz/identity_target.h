// The identity fuzzer's work on one input. fuzz_replay_test runs it over fixed mutations, too. The
// first byte chooses the kind of the rest: a token, the client's file of tokens, the server's, its
// certificate, or a MUNGE credential. A text that is accepted must survive being written and read
// again; a text that is refused must give a reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/identity/certificate.h"
#include "common/identity/munge.h"
#include "common/identity/token.h"
#include "common/identity/token_file.h"
#include "server/identity/token_store.h"
#include "tests/fuzz/accepted.h"

namespace rcuda::fuzz {

inline void read_token(const std::string& text) {
  const Result<identity::Token> token = identity::parse_token(text);
  if (accepted(token)) must(identity::format(*token) == text);
}

inline void read_token_file(const std::string& text) {
  const Result<identity::TokenFile> file = identity::TokenFile::parse(text);
  if (!accepted(file)) return;
  for (const char* host : {"node1", "fe80::1", ""}) {
    const auto token = file->find(host, 9000);
    must(!token || text.find(identity::format(*token)) != std::string::npos);
  }
}

inline void read_stored_tokens(const std::string& text) {
  const Result<server::StoredTokens> tokens = server::parse_tokens(text);
  if (!accepted(tokens)) return;
  const Result<server::StoredTokens> again = server::parse_tokens(server::format_tokens(*tokens));
  must(again.ok() && *again == *tokens);
}

inline void read_certificate(const std::string& text) {
  const Result<identity::Certificate> certificate = identity::parse_certificate(text);
  if (accepted(certificate)) (void)accepted(identity::fingerprint_of(certificate->x509.get()));
}

// No munged listens on that socket, so every credential must be refused.
inline void read_credential(const std::string& text) {
  must(!accepted(identity::munge::decode(text, {.socket = "/nonexistent/munge"})));
}

inline void fuzz_identity(const uint8_t* data, size_t size) {
  if (size == 0 || size > (64u << 10)) return;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      return read_token(text);
    case 1:
      return read_token_file(text);
    case 2:
      return read_stored_tokens(text);
    case 3:
      return read_certificate(text);
    case 4:
      return read_credential(text);
  }
}

inline std::vector<std::string> identity_corpus() {
  std::vector<std::string> corpus;
  const auto add = [&](char what, const std::string& text) { corpus.push_back(what + text); };
  identity::Token token;
  token.id = "0a1b2c3d";
  token.secret.fill(0x5a);
  const std::string text = identity::format(token);
  add(0, text);
  add(1, "# tokens\nnode1:9000 " + text + "\n[fe80::1]@9000\t" + text + " # one\r\n" + text);
  server::StoredToken stored;
  stored.id = token.id;
  stored.user = "ada";
  stored.created = server::Seconds(std::chrono::seconds(1'750'000'000));
  server::StoredTokens tokens = {stored, stored};
  tokens[1].expires = stored.created + std::chrono::seconds(1);
  tokens[1].label = "a label";
  add(2, server::format_tokens(tokens));
  add(3,
      "-----BEGIN CERTIFICATE-----\nMAoGCCqGSM49BAMC\n-----END CERTIFICATE-----\n"
      "-----BEGIN PRIVATE KEY-----\nMAoGCCqGSM49BAMC\n-----END PRIVATE KEY-----\n");
  add(4, "MUNGE:AwQDAABPq2Hk0+/=:");
  return corpus;
}

}  // namespace rcuda::fuzz
