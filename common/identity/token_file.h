// The client's file of tokens: ~/.config/rcuda/token, or the file that RCUDA_TOKEN_FILE names.
//
//   # comment
//   rcuda1.…                  for every server
//   node1 rcuda1.…            for the server node1, on any port
//   node1:9000 rcuda1.…       for that port only; node1@9000 is the same
//   [fe80::1]:9000 rcuda1.…   an IPv6 address is in brackets
//
// A server is named as RCUDA_DEVICES names it; nothing is resolved, and case does not matter. The
// most specific line counts. Two lines for the same server are an error.
// Threads: any. Blocking: for the file system. Errors name the file, the line and the remedy, and
// quote no part of a line that could be a secret.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/identity/token.h"

namespace rcuda::identity {

class TokenFile {
 public:
  static Result<TokenFile> parse(std::string_view text);
  // kNotFound if there is no such file; kDenied if other users have access to it.
  static Result<TokenFile> load(const std::string& path);

  // Returns the token for a server. `host`: without brackets.
  std::optional<Token> find(std::string_view host, uint16_t port) const;
  // Returns the servers that the lines name, for messages: "node1, node2:9000, every server".
  std::string servers() const;

 private:
  struct Line {
    std::string host;   // in lower case; empty: every server
    uint16_t port = 0;  // 0: any
    Token token;
    size_t number = 0;
  };

  friend Result<bool> add_token(const std::string& path, std::string_view line);
  friend Status remove_token(const std::string& path, std::string_view server);

  // Returns the text of the file without the line for that server. `found`: whether the file has
  // such a line.
  static Result<std::string> without(const std::string& path, const std::string& host,
                                     uint16_t port, bool* found);
  static Result<Line> parse_line(const std::vector<std::string_view>& words);
  Status add(Line line);

  std::vector<Line> lines_;
};

// Returns the path of the token file in config_folder(); empty if config_folder() is empty.
std::string default_token_file();

// Puts a line ("node1 rcuda1.…") into the file. Makes the file and its folders if the file does not
// exist. Replaces the line for the same server, if there is one, and then returns true. The other
// lines stay as they are. If several processes do this at the same time, a line may be lost.
Result<bool> add_token(const std::string& path, std::string_view line);
// Removes the line for a server; empty: the line for every server. kNotFound without such a line.
Status remove_token(const std::string& path, std::string_view server);

// Returns the token for a server, from `named_file` or, if that is empty, from the default file.
// nullopt if the file has no token for the server or the default file does not exist. A named file
// must exist.
Result<std::optional<Token>> find_token(const std::string& named_file, std::string_view host,
                                        uint16_t port);
// Describes the file that find_token() reads, for messages: "/home/ada/.config/rcuda/token has
// tokens for node1".
std::string describe_tokens(const std::string& named_file);

}  // namespace rcuda::identity
