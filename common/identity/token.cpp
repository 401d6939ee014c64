#include "common/identity/token.h"

#include <openssl/evp.h>

#include "common/base/random_bytes.h"
#include "common/identity/encoding.h"

namespace rcuda::identity {
namespace {

constexpr std::string_view kPrefix = "rcuda1.";
constexpr size_t kIdBytes = 4;

Status refused(const char* why) {
  return Status(Code::kInvalidArgument,
                std::string("not a token, ") + why +
                    ": a token is one word rcuda1.ID.SECRET.FINGERPRINT, as "
                    "\"rcuda-token create\" prints it on the server");
}

}  // namespace

bool is_token_id(std::string_view text) {
  uint8_t bytes[kIdBytes];
  return from_hex(text, bytes);
}

std::string format(const Token& token) {
  return std::string(kPrefix) + token.id + "." + to_base64url(token.secret) + "." +
         to_base64url(token.fingerprint);
}

Result<Token> parse_token(std::string_view text) {
  if (!text.starts_with(kPrefix)) {
    return text.starts_with("rcuda") ? refused("or a token of another version of rcuda")
                                     : refused("as it does not begin with rcuda1.");
  }
  text.remove_prefix(kPrefix.size());
  const size_t id_end = text.find('.');
  const size_t secret_end = id_end == text.npos ? text.npos : text.find('.', id_end + 1);
  if (secret_end == text.npos) return refused("as parts are missing");
  Token token;
  token.id = text.substr(0, id_end);
  if (!is_token_id(token.id)) return refused("as its id is not eight hexadecimal digits");
  if (!from_base64url(text.substr(id_end + 1, secret_end - id_end - 1), token.secret)) {
    return refused("as its secret is damaged");
  }
  if (!from_base64url(text.substr(secret_end + 1), token.fingerprint)) {
    return refused("as its fingerprint is damaged");
  }
  return token;
}

Result<Token> new_token(const Hash& fingerprint) {
  uint8_t id[kIdBytes];
  Token token;
  token.fingerprint = fingerprint;
  RCUDA_RETURN_IF_ERROR(fill_randomly(id));
  RCUDA_RETURN_IF_ERROR(fill_randomly(token.secret));
  token.id = to_hex(id);
  return token;
}

Result<Hash> hash_of(const Secret& secret) {
  Hash hash;
  if (EVP_Digest(secret.data(), secret.size(), hash.data(), nullptr, EVP_sha256(), nullptr) != 1) {
    return Status(Code::kInternal, "OpenSSL cannot compute SHA-256");
  }
  return hash;
}

}  // namespace rcuda::identity
