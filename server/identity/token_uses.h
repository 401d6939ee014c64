// The times when tokens were last used: the file TOKENS.used next to the file of tokens. The daemon
// writes it, and rcuda-token reads it.
//
//   <id> <time of the last use, as in the file of tokens>
//
// The times are exact to a minute. Servers that share a file of tokens also share this file.
// Threads: one per TokenUses. Blocking: for the file system. Does not wait until the file is on the
// disk, because the daemon's main thread writes it.
#pragma once

#include <map>
#include <string>

#include "common/base/status.h"
#include "server/identity/token_store.h"

namespace rcuda::server {

using UseTimes = std::map<std::string, Seconds>;  // by the token's id

// Empty if there is no file. A line that cannot be read is ignored.
Result<UseTimes> read_token_uses(const std::string& tokens_path);

class TokenUses {
 public:
  explicit TokenUses(const std::string& tokens_path) : tokens_path_(tokens_path) {}

  // Records a use. Writes the file if the last recorded use of the token is at least a minute old.
  // Of several errors in a row, returns only the first. An error does not affect the token: the
  // caller only logs it.
  Status note(const std::string& id, Seconds now);

 private:
  Status write(const std::string& id, Seconds now) const;

  const std::string tokens_path_;
  UseTimes noted_;
  bool failed_ = false;
};

}  // namespace rcuda::server
