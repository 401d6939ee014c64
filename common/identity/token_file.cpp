#include "common/identity/token_file.h"

#include <algorithm>
#include <utility>

#include "common/base/config_folder.h"
#include "common/base/host_port.h"
#include "common/base/list_text.h"
#include "common/base/lower.h"
#include "common/identity/private_file.h"

namespace rcuda::identity {
namespace {

constexpr size_t kMostBytes = 1 << 20;

Status refused(const std::string& why) { return Status(Code::kInvalidArgument, why); }

// Returns the words of a line, without its comment.
std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kSpaces = " \t\r";
  std::vector<std::string_view> words;
  while (true) {
    line.remove_prefix(std::min(line.find_first_not_of(kSpaces), line.size()));
    if (line.empty() || line.front() == '#') return words;
    const size_t end = std::min(line.find_first_of(kSpaces), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

}  // namespace

Result<TokenFile::Line> TokenFile::parse_line(const std::vector<std::string_view>& words) {
  if (words.empty()) {
    return refused("the line has a comment and no token: give a line with a token");
  }
  if (words.size() > 2)
    return refused("the line has more than a server and its token; write one token per line");
  Result<Token> token = parse_token(words.back());
  if (!token.ok()) {
    return words.size() == 2 ? Status(token.status()).with_context("the word after the server")
                             : token.status();
  }
  Line line;
  line.token = *std::move(token);
  if (words.size() == 2 && parse_token(words[0]).ok()) {
    return refused("the line has two tokens; write one token per line");
  }
  if (words.size() == 2 && !parse_host_port(words[0], ":@", &line.host, &line.port)) {
    return refused(
        "the word before the token is not a server: write host, host:port or [address]:port");
  }
  line.host = lower(line.host);
  return line;
}

Status TokenFile::add(Line line) {
  for (const Line& other : lines_) {
    if (other.host == line.host && other.port == line.port) {
      return refused("line " + std::to_string(other.number) +
                     " has a token for the same server already; remove one of the two");
    }
  }
  lines_.push_back(std::move(line));
  return {};
}

Result<TokenFile> TokenFile::parse(std::string_view text) {
  TokenFile file;
  for (size_t number = 1; !text.empty(); ++number) {
    const auto words = words_of(take_item(&text, '\n'));
    if (words.empty()) continue;
    Result<Line> line = parse_line(words);
    Status status = line.status();
    if (line.ok()) {
      line->number = number;
      status = file.add(*std::move(line));
    }
    if (!status.ok()) return std::move(status).with_context("line " + std::to_string(number));
  }
  return file;
}

Result<TokenFile> TokenFile::load(const std::string& path) {
  RCUDA_ASSIGN_OR_RETURN(const std::string text, read_private_file(path, kMostBytes));
  return parse(text).with_context(path);
}

std::optional<Token> TokenFile::find(std::string_view host, uint16_t port) const {
  const std::string name = lower(host);
  const Line* best = nullptr;
  const auto rank = [](const Line& line) { return line.host.empty() ? 0 : line.port == 0 ? 1 : 2; };
  for (const Line& line : lines_) {
    const bool fits =
        line.host.empty() || (line.host == name && (line.port == 0 || line.port == port));
    if (fits && (best == nullptr || rank(line) > rank(*best))) best = &line;
  }
  if (best == nullptr) return std::nullopt;
  return best->token;
}

std::string TokenFile::servers() const {
  std::string text;
  for (const Line& line : lines_) {
    std::string name = bracketed(line.host);
    if (line.port != 0) name += ":" + std::to_string(line.port);
    append_item(&text, name.empty() ? "every server" : name);
  }
  return text;
}

std::string default_token_file() {
  const std::string folder = config_folder();
  return folder.empty() ? folder : folder + "/token";
}

Result<std::string> TokenFile::without(const std::string& path, const std::string& host,
                                       uint16_t port, bool* found) {
  RCUDA_ASSIGN_OR_RETURN(const std::string text, read_private_file(path, kMostBytes));
  RCUDA_RETURN_IF_ERROR(parse(text).with_context(path).status());
  std::string kept;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view next = take_item(&rest, '\n');
    if (const auto words = words_of(next); !words.empty()) {
      RCUDA_ASSIGN_OR_RETURN(const Line line, parse_line(words));
      if (line.host == host && line.port == port) {
        *found = true;
        continue;
      }
    }
    kept += std::string(next) + "\n";
  }
  return kept;
}

Result<bool> add_token(const std::string& path, std::string_view line) {
  RCUDA_ASSIGN_OR_RETURN(const TokenFile::Line added, TokenFile::parse_line(words_of(line)));
  bool replaced = false;
  Result<std::string> kept = TokenFile::without(path, added.host, added.port, &replaced);
  if (kept.status().code() == Code::kNotFound) kept = std::string();
  RCUDA_RETURN_IF_ERROR(kept.status());
  RCUDA_RETURN_IF_ERROR(make_folders_above(path));
  RCUDA_RETURN_IF_ERROR(replace_private_file(path, *kept + std::string(line) + "\n"));
  return replaced;
}

Status remove_token(const std::string& path, std::string_view server) {
  std::string host;
  uint16_t port = 0;
  if (!server.empty() && !parse_host_port(server, ":@", &host, &port)) {
    return refused("\"" + std::string(server) + "\" is not a server: write host or host:port");
  }
  bool found = false;
  RCUDA_ASSIGN_OR_RETURN(const std::string kept,
                         TokenFile::without(path, lower(host), port, &found));
  if (found) return replace_private_file(path, kept);
  return {Code::kNotFound, (server.empty() ? "no token is valid for every server"
                                           : "there is no token for " + std::string(server)) +
                               ": " + describe_tokens(path)};
}

std::string describe_tokens(const std::string& named_file) {
  const std::string path = named_file.empty() ? default_token_file() : named_file;
  if (path.empty()) return "HOME is not set, so there is no token file";
  const Result<TokenFile> file = TokenFile::load(path);
  if (file.status().code() == Code::kNotFound) return file.status().context();
  if (!file.ok()) return "no token can be read: " + file.status().context();
  const std::string servers = file->servers();
  return path + (servers.empty() ? " has no tokens" : " has tokens for " + servers);
}

Result<std::optional<Token>> find_token(const std::string& named_file, std::string_view host,
                                        uint16_t port) {
  const std::string path = named_file.empty() ? default_token_file() : named_file;
  if (path.empty()) return std::optional<Token>();
  const Result<TokenFile> file = TokenFile::load(path);
  if (file.ok()) return file->find(host, port);
  if (named_file.empty() && file.status().code() == Code::kNotFound) return std::optional<Token>();
  return file.status();
}

}  // namespace rcuda::identity
