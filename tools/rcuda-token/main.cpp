// rcuda-token: makes, lists and revokes the tokens with which clients of other machines
// authenticate themselves to this machine's rcuda-server over TLS. On the clients, puts them into
// the user's file, and removes them.
//
//   rcuda-token create --user ada --expires 30d --label laptop
//   rcuda-token create --role observer
//   rcuda-token list
//   rcuda-token revoke 1a2b3c4d
//   rcuda-token revoke --user ada
//   ssh node1 rcuda-token create | rcuda-token add
//   rcuda-token remove node1
//
// It edits the server's file of tokens (server/identity/token_store.h); a running server reads the
// change. `create` prints only the line with the new token to stdout. add and remove edit the
// client's file (common/identity/token_file.h).

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <unistd.h>

#include "common/base/host_name.h"
#include "common/base/host_port.h"
#include "common/base/json_text.h"
#include "common/base/standard_descriptors.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "common/base/version.h"
#include "common/config/command_line.h"
#include "common/config/toml_file.h"
#include "common/identity/certificate.h"
#include "common/identity/token.h"
#include "common/identity/token_file.h"
#include "common/identity/users.h"
#include "server/identity/accounts.h"
#include "server/identity/default_paths.h"
#include "server/identity/served_users.h"
#include "server/identity/token_store.h"
#include "server/identity/token_uses.h"
#include "server/protocol/settings.h"

namespace rcuda {
namespace {

constexpr const char* kFooter =
    R"(On the server, "create" prints a line with a name of the server and a token:
    node1 rcuda1.1a2b3c4d....
On the client machine, "add" reads such lines, of one or several servers, and puts them into the
user's file. RCUDA_DEVICES must name the server as its line does. A line for node1 is for servers on
all ports of node1, a line for node1:9000 only for the server on this port. A line with only a token
is for all servers that have no line. A new line replaces the old line for the same server. "remove"
removes the line of a server that no longer exists.

The holder of a token may use the server as ROLE says, and recognises the server by the fingerprint
of the server's key, which is the last part of the token.

Roles:
    session   sessions as USER; if the server runs as root, USER must exist on its machine
    observer  shows all sessions and GPUs (rcuda-smi, rcuda-exporter), and changes nothing
    operator  as observer; also takes leases, ends and parks sessions, drains and reloads servers

A server of root accepts sessions of root from other machines only if its setting `users` names root.

The server keeps only a hash of the secret. A token that is lost cannot be shown again: revoke it
and make another. A running server notices every change. Running sessions continue until "rcuda-smi
end" ends them.

Files, for root in /etc/rcuda, else in $XDG_CONFIG_HOME/rcuda or ~/.config/rcuda:
    tokens       the server's tokens
    tokens.used  when each token was last used, to a minute
    server.pem   the server's certificate and key; if the key changes, old tokens become invalid
The client's file is $XDG_CONFIG_HOME/rcuda/token or ~/.config/rcuda/token, or the one that
RCUDA_TOKEN_FILE names.

Examples:
    sudo rcuda-token create --user ada --expires 30d --label laptop
    sudo rcuda-token create --role observer --expires never --label rcuda-exporter
    sudo rcuda-token revoke 1a2b3c4d
    sudo rcuda-token revoke --user ada
    ssh root@node1 rcuda-token create --user ada | rcuda-token add
    rcuda-token remove node1:9000)";

constexpr const char* kEveryServer = "*";

struct Options {
  std::string file = server::default_tokens_file();
  std::string certificate = server::default_certificate_file();
  std::string user, label, expires = "90d", role = "session";
  std::string server;  // as clients name it
  std::string client_file;
  std::vector<std::string> ids;
  bool json = false;
};

server::Seconds now() {
  return std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
}

Status check_expiry(const std::string& text) {
  if (parse_life(text)) return {};
  return Status(Code::kInvalidArgument, "\"" + text + "\" is not usable: write " + kLifeForms);
}

// Returns nullopt for a token that does not expire. `text`: accepted by check_expiry().
std::optional<server::Seconds> end_of(const std::string& text, server::Seconds from) {
  const auto life = parse_life(text);
  return !life || life->count() == 0 ? std::nullopt : std::optional(from + *life);
}

// Returns the user of a new token. Root must name the user. A token without the session role needs
// no user; then the role is the user's name.
Result<std::string> choose_user(const std::string& wanted, const server::Roles& roles) {
  const uid_t own = ::geteuid();
  const bool for_sessions = roles.has(server::Role::kSession);
  if (wanted.empty() && !for_sessions) return roles.text();
  if (wanted.empty() && own == 0) {
    return Status(Code::kInvalidArgument,
                  "name the user whose sessions the token is for: --user ada (or --user root, if "
                  "the server's setting \"users\" names root). For rcuda-exporter and rcuda-smi: "
                  "--role observer");
  }
  if (wanted.empty()) return identity::user_name(own);
  RCUDA_ASSIGN_OR_RETURN(const uid_t uid, identity::user_id(wanted));
  if (own == 0 || uid == own) return identity::user_name(uid);
  return Status(Code::kDenied, "only root can make a token for " + wanted + ": a server of " +
                                   identity::user_name(own) +
                                   " runs all sessions as its own user and cannot act for " +
                                   "another user; run \"sudo rcuda-token create --user " + wanted +
                                   "\" for a server that runs as root");
}

// Returns the beginning of a token's line for the server, such as "node1 ".
Result<std::string> line_start(const std::string& server) {
  if (server == kEveryServer) return std::string();
  std::string host;
  uint16_t port = 0;
  const bool is_word = server.find_first_of(" \t#") == std::string::npos;
  if (is_word && parse_host_port(server, ":@", &host, &port)) return server + " ";
  return Status(Code::kInvalidArgument, "\"" + server +
                                            "\" is not usable: write host, host:port or "
                                            "[address]:port, or \"*\" for every server");
}

// Prints a note if the server's setting `users` does not name the user: such a token gives no
// session.
void note_if_not_served(const Options& options, const std::string& user) {
  const std::string file = server::default_config_file();
  server::Settings settings;
  if (::access(file.c_str(), R_OK) != 0 ||
      !config::load_toml_file(settings.registry, file, "limits").ok() ||
      settings.users.get().empty()) {
    return;
  }
  const std::string& tokens = settings.tokens.get();
  if (options.file != (tokens.empty() ? server::default_tokens_file() : tokens)) return;
  const Result<server::Account> account = server::look_up_account(user);
  Result<server::ServedUsers> served = server::ServedUsers::read(settings.users.get());
  const auto operators = server::ServedUsers::read(settings.operators.get());
  if (!served.ok() || !operators.ok()) return;
  served->add(*operators);
  const bool is_known = account.status().code() != Code::kNotFound;
  if (served->serves_everybody() || (is_known && !account.ok()) ||
      (is_known && served->contains(account->uid, account->gid, account->groups))) {
    return;
  }
  // An unknown user is a uid without an account. (choose_user() refuses unknown names.)
  const std::string remedy =
      is_known ? "add " + user + " to users, or to a group that users names"
               : "this machine does not know " + user +
                     "; set users = \"\" (a token is enough) or users = \"*\" (everybody)";
  std::fprintf(
      stderr,
      "rcuda-token: users = \"%s\" in %s does not name %s, so the token gives no session: %s\n",
      settings.users.get().c_str(), file.c_str(), user.c_str(), remedy.c_str());
}

// Whether a server of this machine has bound its abstract local socket.
bool runs_server() {
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    if (line.find(" @rcuda-") != line.npos) return true;
  }
  return false;
}

Status create(const Options& options) {
  RCUDA_ASSIGN_OR_RETURN(const std::string start, line_start(options.server));
  const server::Seconds created = now();
  const std::optional<server::Seconds> expires = end_of(options.expires, created);
  RCUDA_ASSIGN_OR_RETURN(const server::Roles roles,
                         server::Roles::parse(options.role).with_context("--role"));
  RCUDA_ASSIGN_OR_RETURN(const std::string user, choose_user(options.user, roles));
  bool made = false;
  RCUDA_ASSIGN_OR_RETURN(const auto certificate, identity::load_or_make_certificate(
                                                     options.certificate, host_name(), &made));
  if (made) {
    std::fprintf(stderr, "rcuda-token: made a new key for the server in %s, fingerprint %s\n",
                 options.certificate.c_str(), identity::fingerprint_text(certificate).c_str());
  }
  RCUDA_ASSIGN_OR_RETURN(const auto fingerprint, identity::fingerprint_of(certificate.x509.get()));
  RCUDA_ASSIGN_OR_RETURN(
      const auto token,
      server::create_token(options.file, {user, fingerprint, expires, options.label, roles},
                           created));
  // Includes the duration: a user may mean days by a number without a unit, which is in seconds.
  const std::string end =
      expires ? server::format_time(*expires) + " (in " + time_text(*expires - created) + ")"
              : "never";
  std::fprintf(stderr,
               "rcuda-token: token %s of %s, role %s, expires %s; on the client machine, give the "
               "line to \"rcuda-token add\" (or put it into ~/.config/rcuda/token, mode 600)\n",
               token.id.c_str(), user.c_str(), roles.text().c_str(), end.c_str());
  std::printf("%s%s\n", start.c_str(), identity::format(token).c_str());
  if (roles.has(server::Role::kSession)) note_if_not_served(options, user);
  if (!runs_server()) {
    std::fprintf(
        stderr,
        "rcuda-token: no rcuda-server is visible on this machine (%s): the token is valid only for "
        "a server that runs here with the certificate %s; for a server of another machine, run "
        "rcuda-token create there\n",
        host_name().c_str(), options.certificate.c_str());
  }
  return {};
}

bool is_expired(const server::StoredToken& token) {
  return token.expires && *token.expires <= now();
}

// Returns the time as text, or `none` if there is no time.
std::string time_or(const std::optional<server::Seconds>& time, const char* none) {
  return time ? server::format_time(*time) : none;
}

struct ListedToken {
  server::StoredToken token;
  std::optional<server::Seconds> used;
};

void print_json(const std::vector<ListedToken>& tokens) {
  const auto time_json = [](const std::optional<server::Seconds>& time) {
    return time ? json_text(server::format_time(*time)) : "null";
  };
  std::printf("[");
  const char* before = "";
  for (const auto& [token, used] : tokens) {
    std::printf(
        "%s\n  {\"id\": %s, \"user\": %s, \"created\": %s, \"expires\": %s, \"expired\": %s, "
        "\"last_use\": %s, \"role\": %s, \"label\": %s}",
        before, json_text(token.id).c_str(), json_text(token.user).c_str(),
        time_json(token.created).c_str(), time_json(token.expires).c_str(),
        is_expired(token) ? "true" : "false", time_json(used).c_str(),
        json_text(token.roles.text()).c_str(), json_text(token.label).c_str());
    before = ",";
  }
  std::printf("%s]\n", tokens.empty() ? "" : "\n");
}

void print_table(const std::vector<ListedToken>& tokens) {
  if (tokens.empty()) return;
  size_t widest = 4;
  for (const ListedToken& each : tokens) widest = std::max(widest, each.token.user.size());
  const int width = static_cast<int>(widest);
  std::printf("%-8s  %-*s  %-20s  %-20s  %-20s  %-8s  %s\n", "ID", width, "USER", "CREATED",
              "EXPIRES", "LAST USE", "ROLE", "LABEL");
  for (const auto& [token, used] : tokens) {
    std::printf("%-8s  %-*s  %-20s  %-20s  %-20s  %-8s  %s%s\n", token.id.c_str(), width,
                token.user.c_str(), server::format_time(token.created).c_str(),
                time_or(token.expires, "never").c_str(), time_or(used, "never").c_str(),
                token.roles.text().c_str(), is_expired(token) ? "(expired) " : "",
                token.label.c_str());
  }
}

Result<std::string> client_file(const Options& options) {
  const char* const variable = ::getenv("RCUDA_TOKEN_FILE");
  std::string file = options.client_file;
  if (file.empty()) file = variable && *variable ? variable : identity::default_token_file();
  if (!file.empty()) return file;
  return Status(Code::kInvalidArgument, "HOME is not set: name the file with --file");
}

// Adds the lines of stdin to the client's file. Secrets are not passed as arguments, because other
// users can see the arguments of a command.
Status add(const Options& options) {
  RCUDA_ASSIGN_OR_RETURN(const std::string file, client_file(options));
  if (::isatty(STDIN_FILENO)) {
    std::fprintf(stderr, "rcuda-token: paste the lines of \"rcuda-token create\", then Ctrl-D\n");
  }
  constexpr const char* kBlanks = " \t\r";
  int lines = 0;
  for (std::string line; std::getline(std::cin, line);) {
    line.erase(0, line.find_first_not_of(kBlanks));
    line.erase(line.find_last_not_of(kBlanks) + 1);
    if (line.empty()) continue;
    ++lines;
    const size_t token = line.find_last_of(" \t") + 1;
    if (!options.server.empty()) {
      RCUDA_ASSIGN_OR_RETURN(const std::string start, line_start(options.server));
      line = start + line.substr(token);
    }
    RCUDA_ASSIGN_OR_RETURN(
        const bool replaced,
        identity::add_token(file, line).with_context("line " + std::to_string(lines)));
    const size_t end = line.find_first_of(" \t");
    std::fprintf(
        stderr, "rcuda-token: %s the token for %s in %s\n", replaced ? "replaced" : "added",
        end == std::string::npos ? "every server" : line.substr(0, end).c_str(), file.c_str());
  }
  if (lines != 0) return {};
  return Status(Code::kInvalidArgument,
                "there is no line to add: give the output of \"rcuda-token create\" as input");
}

Status remove(const Options& options) {
  RCUDA_ASSIGN_OR_RETURN(const std::string file, client_file(options));
  const bool is_for_all = options.server == kEveryServer;
  RCUDA_RETURN_IF_ERROR(identity::remove_token(file, is_for_all ? "" : options.server));
  std::fprintf(stderr, "rcuda-token: removed the token for %s from %s\n",
               is_for_all ? "every server" : options.server.c_str(), file.c_str());
  return {};
}

Status list(const Options& options) {
  RCUDA_ASSIGN_OR_RETURN(const server::StoredTokens tokens, server::list_tokens(options.file));
  RCUDA_ASSIGN_OR_RETURN(const server::UseTimes uses, server::read_token_uses(options.file));
  std::vector<ListedToken> listed;
  for (const server::StoredToken& token : tokens) {
    const auto used = uses.find(token.id);
    listed.push_back({token, used == uses.end() ? std::nullopt : std::optional(used->second)});
  }
  options.json ? print_json(listed) : print_table(listed);
  return {};
}

Status revoke(const Options& options) {
  if (options.ids.empty() && options.user.empty()) {
    return Status(Code::kInvalidArgument,
                  "name the ids of the tokens to revoke (rcuda-token list shows them), or --user "
                  "NAME for all tokens of a user");
  }
  RCUDA_ASSIGN_OR_RETURN(const server::StoredTokens revoked,
                         server::revoke_tokens(options.file, options.ids, options.user));
  for (const server::StoredToken& token : revoked) {
    std::fprintf(stderr, "rcuda-token: revoked token %s of %s\n", token.id.c_str(),
                 token.user.c_str());
  }
  std::fprintf(
      stderr,
      "rcuda-token: no new session begins with the revoked token%s; running sessions go on "
      "until \"rcuda-smi end\" ends them\n",
      revoked.size() == 1 ? "" : "s");
  return {};
}

int report(const Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "rcuda-token: %s\n", status.context().c_str());
  return 1;
}

config::CommandLine& add_creating(config::CommandLine* line, Options* options) {
  config::CommandLine& creating =
      line->subcommand("create", "on the server: make a token and print its line");
  creating
      .option("--server", &options->server,
              "how clients name this server, host or host:port (default: this machine's name); "
              "\"*\": every server")
      .type_name("NAME")
      .check([](const std::string& text) { return line_start(text).status(); });
  creating
      .option("--user", &options->user,
              "the user whose sessions the token is for; only root may name another user")
      .type_name("NAME");
  creating
      .option("--role", &options->role,
              "session, observer or operator, or several separated by commas")
      .type_name("ROLE")
      .check([](const std::string& text) { return server::Roles::parse(text).status(); })
      .show_default();
  creating.option("--expires", &options->expires, kLifeForms)
      .type_name("TIME")
      .check(check_expiry)
      .show_default();
  creating.option("--label", &options->label, "a text for the list of tokens").type_name("TEXT");
  creating
      .option("--certificate", &options->certificate,
              "the server's certificate and key; created if the file does not exist")
      .type_name("FILE")
      .show_default();
  return creating;
}

config::CommandLine& add_adding(config::CommandLine* line, Options* options) {
  config::CommandLine& adding = line->subcommand(
      "add", "on a client machine: put lines, which are read from stdin, into the user's file");
  adding
      .option("--server", &options->server,
              "how RCUDA_DEVICES names the server, if not as in the line; \"*\": every server")
      .type_name("NAME")
      .check([](const std::string& text) { return line_start(text).status(); });
  return adding;
}

config::CommandLine& add_removing(config::CommandLine* line, Options* options) {
  config::CommandLine& removing = line->subcommand(
      "remove", "on a client machine: take a server's line out of the user's file");
  removing
      .option("server", &options->server,
              "the server, as its line names it; \"*\": the line for every server")
      .required()
      .type_name("NAME")
      .check([](const std::string& text) { return line_start(text).status(); });
  return removing;
}

int start(int argc, char** argv) {
  open_standard_descriptors();
  Options options;
  config::CommandLine line(
      "rcuda-token",
      "Makes, lists and revokes the tokens of this machine's rcuda-server, and adds and removes "
      "those of other machines' servers in the user's file.",
      version_of("rcuda-token"));
  line.require_subcommand(1, 1);
  config::CommandLine& creating = add_creating(&line, &options);
  config::CommandLine& adding = add_adding(&line, &options);
  config::CommandLine& removing = add_removing(&line, &options);
  config::CommandLine& listing =
      line.subcommand("list", "on the server: show the tokens, without their secrets");
  config::CommandLine& revoking = line.subcommand("revoke", "on the server: make tokens invalid");
  listing.flag("--json", &options.json, "for programs: a list with an object for each token");
  revoking.option("id", &options.ids, "ids of tokens, as rcuda-token list shows them")
      .type_name("ID");
  revoking.option("--user", &options.user, "all tokens of this user").type_name("NAME");
  for (config::CommandLine* command : {&creating, &listing, &revoking}) {
    command->option("--file", &options.file, "the file of the server's tokens")
        .type_name("FILE")
        .show_default();
  }
  for (config::CommandLine* command : {&adding, &removing}) {
    command
        ->option("--file", &options.client_file,
                 "the user's file (default: RCUDA_TOKEN_FILE, or ~/.config/rcuda/token)")
        .type_name("FILE");
  }
  line.footer(kFooter);  // last, so that the subcommands do not inherit it
  if (const std::optional<int> status = line.parse(argc, argv)) return *status;

  if (adding.is_chosen()) return report(add(options));
  if (removing.is_chosen()) return report(remove(options));
  if (options.server.empty()) options.server = host_name();
  if (options.file.empty() || (creating.is_chosen() && options.certificate.empty())) {
    return report(Status(Code::kInvalidArgument,
                         "HOME is not set: name the file of the server's tokens with --file and, "
                         "for rcuda-token create, the server's certificate with --certificate"));
  }
  if (creating.is_chosen()) return report(create(options));
  if (listing.is_chosen()) return report(list(options));
  return report(revoke(options));
}

}  // namespace
}  // namespace rcuda

int main(int argc, char** argv) { return rcuda::start(argc, argv); }
