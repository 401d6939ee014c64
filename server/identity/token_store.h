// The server's tokens: a text file that rcuda-token edits and the daemon reads.
//
//   # comment
//   <id> <user> <SHA-256 of the secret in hex> <created> role:<roles> <expires, or never> <label>
//
// Times are in UTC, 2025-01-31T12:00:00Z. A token without roles (roles.h) is for sessions. The
// roles are not at the end of the line. So a line that has lost its end is damaged, and is not read
// as a token without roles. The label is the rest of the line and may be empty. A missing file
// holds no tokens.
//
// A file that other users can access is refused, and so is a file that has damaged lines and no
// token. While the file is refused, no token is valid. In a file that is not refused, a damaged
// line grants nothing, the server's log names it, and the other tokens stay valid, because no token
// depends on another line.
// create_token() refuses a file with a damaged line, because it rewrites the file from its tokens;
// it also drops all comments. revoke_tokens() leaves all other lines as they are.
//
// Threads: one per TokenStore. Blocking: for the file system. The editing functions also wait for
// each other, across processes. Errors name the file and the remedy.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/stat.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/identity/token.h"
#include "common/tls/connection.h"
#include "server/identity/roles.h"

namespace rcuda::server {

using Seconds = std::chrono::sys_seconds;

struct StoredToken {
  std::string id;
  std::string user;  // see common/identity/users.h
  identity::Hash secret_hash{};
  Seconds created;
  std::optional<Seconds> expires;
  std::string label;
  Roles roles = Role::kSession;
  bool operator==(const StoredToken&) const = default;
};

// The tokens in the order of the file.
using StoredTokens = std::vector<StoredToken>;

Result<StoredTokens> parse_tokens(std::string_view text);
std::string format_tokens(const StoredTokens& tokens);
std::string format_time(Seconds time);
// Returns false unless `text` has the form of format_time().
bool parse_time(std::string_view text, Seconds* time);

// The tokens as the daemon checks them.
class TokenStore {
 public:
  explicit TokenStore(std::string path) : path_(std::move(path)) {}

  // Reads the file again if it has changed, and logs damaged lines; otherwise costs one stat().
  // After an error there are no tokens, and refresh() returns the error until the file changes.
  Status refresh();

  // The rights that a token grants.
  struct Grant {
    std::string user;
    Roles roles = Role::kSession;
  };
  // `mac`: tls::token_proof() as the token's holder computed it. kDenied if the token is unknown or
  // expired; only a caller that knows the secret learns that the token has expired. The time of the
  // call does not depend on the secret.
  Result<Grant> find(const std::string& id, const tls::Key& mac, const tls::Key& binding,
                     Seconds now) const;
  size_t size() const { return tokens_.size(); }

 private:
  Status load();

  const std::string path_;
  // The file that was read. While it is open, no new file can get its inode number, so refresh()
  // notices a replaced file.
  UniqueFd file_;
  struct stat read_ {};
  Status status_;
  std::map<std::string, StoredToken> tokens_;  // by token id
};

// The functions of rcuda-token.

Result<StoredTokens> list_tokens(const std::string& path);

struct NewToken {
  std::string user;
  identity::Hash fingerprint{};  // of the server's certificate
  std::optional<Seconds> expires;
  std::string label;
  Roles roles = Role::kSession;
};
// Makes the file and its folders if they are not there. The file gets a hash of the secret; only
// the returned token has the secret.
Result<identity::Token> create_token(const std::string& path, const NewToken& wanted, Seconds now);

// Revokes the tokens with these ids and, if `user` is not empty, all tokens of this user. Returns
// the revoked tokens. Revokes none and returns kNotFound if the file lacks an id, or if the user
// has no token. Logs damaged lines, and keeps them.
Result<StoredTokens> revoke_tokens(const std::string& path, const std::vector<std::string>& ids,
                                   const std::string& user = {});

}  // namespace rcuda::server
