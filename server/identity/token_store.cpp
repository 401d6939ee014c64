#include "server/identity/token_store.h"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/file.h>

#include "common/base/date_text.h"
#include "common/base/list_text.h"
#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/identity/encoding.h"
#include "common/identity/private_file.h"
#include "common/tls/proof.h"

namespace rcuda::server {
namespace {

using identity::Hash;
using identity::Token;

constexpr size_t kMostBytes = 16 << 20;
constexpr size_t kMostReported = 10;  // damaged lines that one read logs
constexpr std::string_view kHeading =
    "# The tokens of an rcuda server: id, user, SHA-256 of the secret, created, roles, expires, "
    "label.\n"
    "# Made by rcuda-token, which keeps no other comments.\n";

constexpr std::string_view kRoles = "role:";

bool is_user(std::string_view text) {
  return !text.empty() && is_printable(text) && text.find(' ') == text.npos;
}

// Takes the roles, if the line begins with them.
Status take_roles(std::string_view* line, StoredToken* token) {
  if (!line->starts_with(kRoles)) return {};
  RCUDA_ASSIGN_OR_RETURN(token->roles, Roles::parse(take_item(line, ' ').substr(kRoles.size())));
  return {};
}

Result<StoredToken> parse_line(std::string_view line) {
  const auto refused = [](const char* what) {
    return Status(Code::kInvalidArgument, std::string("not a token: ") + what);
  };
  StoredToken token;
  token.id = take_item(&line, ' ');
  if (!identity::is_token_id(token.id)) return refused("its id is not eight hexadecimal digits");
  token.user = take_item(&line, ' ');
  if (!is_user(token.user)) return refused("it has no user");
  if (!identity::from_hex(take_item(&line, ' '), token.secret_hash)) {
    return refused("the hash of its secret is damaged");
  }
  if (!parse_time(take_item(&line, ' '), &token.created)) {
    return refused("the time when it was created is damaged");
  }
  if (!take_roles(&line, &token).ok()) return refused("its roles are not known");
  if (const std::string_view expires = take_item(&line, ' '); expires != "never") {
    Seconds time;
    if (!parse_time(expires, &time)) return refused("the time when it expires is damaged");
    token.expires = time;
  }
  // Older versions wrote the roles here, after the time of expiry.
  if (!take_roles(&line, &token).ok()) return refused("its roles are not known");
  if (!is_printable(line)) return refused("its label has control characters");
  token.label = line;
  return token;
}

std::string format_line(const StoredToken& token) {
  std::string line = token.id + " " + token.user + " " + identity::to_hex(token.secret_hash) + " " +
                     format_time(token.created);
  if (token.roles != Roles(Role::kSession)) line += " " + std::string(kRoles) + token.roles.text();
  line += " " + (token.expires ? format_time(*token.expires) : "never");
  if (!token.label.empty()) line += " " + token.label;
  return line;
}

bool has_token(const StoredTokens& tokens, const std::string& id) {
  return std::any_of(tokens.begin(), tokens.end(),
                     [&](const StoredToken& token) { return token.id == id; });
}

// Whether reading the line of the token gives the same token.
bool can_be_stored(const StoredToken& token) {
  const Result<StoredToken> read = parse_line(format_line(token));
  return read.ok() && *read == token;
}

Status unknown(const std::string& id) {
  return Status(Code::kDenied, "the server does not know the token " + id +
                                   ": it was made for another server, or it was revoked; "
                                   "\"rcuda-token create\" on the server makes a new one");
}

struct Lines {
  StoredTokens tokens;
  std::vector<Status> damaged;
};

Lines parse_lines(std::string_view text) {
  Lines lines;
  for (size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = take_item(&text, '\n');
    if (line.empty() || line.front() == '#') continue;
    Result<StoredToken> token = parse_line(line);
    if (token.ok()) {
      lines.tokens.push_back(*std::move(token));
    } else {
      lines.damaged.push_back(
          Status(token.status()).with_context("line " + std::to_string(number)));
    }
  }
  return lines;
}

// Empty if there is no file.
Result<std::string> read_file(const std::string& path) {
  const Result<UniqueFd> file = identity::open_private_file(path);
  if (file.status().code() == Code::kNotFound) return std::string();
  RCUDA_RETURN_IF_ERROR(file.status());
  return identity::read_to_end(file->get(), path, kMostBytes);
}

// One process at a time holds the lock while it reads, changes and replaces the file. The lock is
// on a file of its own, because the file of tokens is replaced.
Result<UniqueFd> lock(const std::string& path) {
  const std::string name = path + ".lock";
  UniqueFd file(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return Status::from_errno(errno, "cannot open " + name);
  while (::flock(file.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return Status::from_errno(errno, "cannot lock " + name);
  }
  return file;
}

bool same(const struct timespec& a, const struct timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

}  // namespace

std::string format_time(Seconds time) { return date_text(time.time_since_epoch().count()); }

bool parse_time(std::string_view text, Seconds* time) {
  std::tm parts{};
  const std::string copy(text);
  const char* const end = ::strptime(copy.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  if (end != copy.c_str() + copy.size()) return false;
  *time = Seconds(std::chrono::seconds(::timegm(&parts)));
  return format_time(*time) == text;  // strptime() accepts other forms, and the 31st of any month
}

Result<StoredTokens> parse_tokens(std::string_view text) {
  Lines lines = parse_lines(text);
  if (!lines.damaged.empty()) return lines.damaged.front();
  return std::move(lines.tokens);
}

std::string format_tokens(const StoredTokens& tokens) {
  std::string text(kHeading);
  for (const StoredToken& token : tokens) text += format_line(token) + "\n";
  return text;
}

Status TokenStore::refresh() {
  struct stat now;
  const bool exists = ::stat(path_.c_str(), &now) == 0;
  const bool unchanged = exists && file_ && now.st_dev == read_.st_dev &&
                         now.st_ino == read_.st_ino && now.st_size == read_.st_size &&
                         same(now.st_mtim, read_.st_mtim) && same(now.st_ctim, read_.st_ctim);
  if (!unchanged) status_ = load();
  return status_;
}

Status TokenStore::load() {
  tokens_.clear();
  file_.reset();
  Result<UniqueFd> file = identity::open_private_file(path_);
  if (!file.ok()) return file.status().code() == Code::kNotFound ? Status() : file.status();
  // fstat() comes before the read, so that the next refresh() notices a change during the read.
  if (::fstat(file->get(), &read_) != 0)
    return Status::from_errno(errno, "reading the properties of " + path_);
  file_ = *std::move(file);
  RCUDA_ASSIGN_OR_RETURN(const std::string text,
                         identity::read_to_end(file_.get(), path_, kMostBytes));
  const Lines lines = parse_lines(text);
  if (lines.tokens.empty() && !lines.damaged.empty()) {
    return Status(lines.damaged.front()).with_context(path_);
  }
  for (size_t i = 0; i < std::min(lines.damaged.size(), kMostReported); ++i) {
    RCUDA_ERROR(
        "ignored a damaged token: %s: %s; remove the line, and make another token for its user; "
        "the other tokens stay valid",
        path_.c_str(), lines.damaged[i].context().c_str());
  }
  for (const StoredToken& token : lines.tokens) tokens_.emplace(token.id, token);
  return {};
}

Result<TokenStore::Grant> TokenStore::find(const std::string& id, const tls::Key& mac,
                                           const tls::Key& binding, Seconds now) const {
  // Do not echo a malformed id: a peer may send any text.
  if (!identity::is_token_id(id))
    return Status(Code::kProtocol, "the client sent a malformed token id");
  const auto found = tokens_.find(id);
  if (found == tokens_.end()) return unknown(id);
  const StoredToken& token = found->second;
  const tls::Key expected = tls::token_proof(token.secret_hash, binding);
  if (CRYPTO_memcmp(expected.data(), mac.data(), mac.size()) != 0) return unknown(id);
  if (token.expires && *token.expires <= now) {
    return Status(Code::kDenied, "the token " + id + " of " + token.user + " expired on " +
                                     format_time(*token.expires) +
                                     "; \"rcuda-token create\" on the server makes a new one");
  }
  return Grant{token.user, token.roles};
}

Result<StoredTokens> list_tokens(const std::string& path) {
  RCUDA_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  return parse_tokens(text).with_context(path);
}

Result<Token> create_token(const std::string& path, const NewToken& wanted, Seconds now) {
  RCUDA_RETURN_IF_ERROR(identity::make_folders_above(path));
  RCUDA_ASSIGN_OR_RETURN(const UniqueFd held, lock(path));
  RCUDA_ASSIGN_OR_RETURN(StoredTokens tokens, list_tokens(path));
  RCUDA_ASSIGN_OR_RETURN(Token token, identity::new_token(wanted.fingerprint));
  while (has_token(tokens, token.id)) {
    RCUDA_ASSIGN_OR_RETURN(token, identity::new_token(wanted.fingerprint));
  }
  RCUDA_ASSIGN_OR_RETURN(const Hash hash, identity::hash_of(token.secret));
  tokens.push_back({token.id, wanted.user, hash, now, wanted.expires, wanted.label, wanted.roles});
  if (!can_be_stored(tokens.back())) {
    return Status(
        Code::kInvalidArgument,
        "the token cannot be stored: its user may not contain spaces, its label may not contain "
        "control characters or begin with \"role:\", and it may not expire "
        "after the year 9999");
  }
  RCUDA_RETURN_IF_ERROR(identity::replace_private_file(path, format_tokens(tokens)));
  return token;
}

Result<StoredTokens> revoke_tokens(const std::string& path, const std::vector<std::string>& ids,
                                   const std::string& user) {
  // If the file is missing, its folder may be missing too, and the lock cannot be made.
  if (struct stat status; ::stat(path.c_str(), &status) != 0 && errno == ENOENT) {
    return Status(Code::kNotFound, "there are no tokens: the file " + path + " does not exist");
  }
  RCUDA_ASSIGN_OR_RETURN(const UniqueFd held, lock(path));
  RCUDA_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  const Lines lines = parse_lines(text);
  for (const Status& damaged : lines.damaged) {
    RCUDA_WARN("%s: %s; the line grants nothing and stays in the file", path.c_str(),
               damaged.context().c_str());
  }
  for (const std::string& id : ids) {
    if (!has_token(lines.tokens, id)) {
      return Status(Code::kNotFound, path + " has no token " + id +
                                         ", so nothing was revoked; \"rcuda-token list\" shows "
                                         "the tokens");
    }
  }
  const auto is_theirs = [&](const StoredToken& token) { return token.user == user; };
  if (!user.empty() && std::ranges::none_of(lines.tokens, is_theirs)) {
    return Status(Code::kNotFound, path + " has no token of the user " + user +
                                       ", so nothing was revoked; \"rcuda-token list\" shows the "
                                       "tokens");
  }
  StoredTokens revoked;
  std::string kept;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = take_item(&rest, '\n');
    const Result<StoredToken> token = parse_line(line);
    const bool is_named =
        token.ok() && (is_theirs(*token) || std::ranges::find(ids, token->id) != ids.end());
    if (is_named) {
      revoked.push_back(*token);
    } else {
      kept.append(line) += '\n';
    }
  }
  RCUDA_RETURN_IF_ERROR(identity::replace_private_file(path, kept));
  return revoked;
}

}  // namespace rcuda::server
