// Authenticator: finds the identity of a client that sends Authenticate, and knows which users the
// server serves. The daemon uses it before it handles a request of such a client; docs/security.md
// describes the methods. The client's half is common/reach/identify.h. Clients of the local socket
// (identity.h) and with tickets (tickets.h) do not send Authenticate.
//
// examine() makes a Proof from the client's Authenticate, and identify() the client's Identity from
// the Proof. identify() may return nothing at first: other threads query munged and the system's
// user database, and descriptors() become readable when these have answered.
//
// Threads: the daemon's main thread. Blocking: open() and read(), for files and the user database;
// examine(), for the files of tokens. Errors: kDenied with the reason and the remedy; errors do not
// help to guess a secret.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/identity/certificate.h"
#include "common/messages/handshake.h"
#include "common/reach/identify.h"
#include "common/tls/connection.h"
#include "server/identity/accounts.h"
#include "server/identity/identity.h"
#include "server/identity/munge_checks.h"
#include "server/identity/served_users.h"
#include "server/identity/token_store.h"
#include "server/identity/token_uses.h"
#include "server/protocol/settings.h"

namespace rcuda::tls {
class Authorities;
}

namespace rcuda::server {

// The evidence that a client has brought for its identity.
struct Proof {
  const char* method = "";            // Identity::method
  std::optional<AccountKey> account;  // the user's number or name, once it is known
  std::optional<Roles> roles;         // of the token, if the client has used a token
  std::optional<uint64_t> check;      // the number of the MUNGE check in progress
  std::string answer;                 // for the message Authenticated
};

// The files of the certificate and of the tokens: those that the settings name, or the default
// files.
std::string certificate_file(const Settings& settings);
std::string tokens_file(const Settings& settings);

class Authenticator {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Authenticator(const Settings& settings);

  // The users and certificates that settings, files and the user database name.
  struct Trust {
    ServedUsers served;  // operators included
    // Whether a token is enough for a session. True if the setting `users` is empty.
    bool takes_all_tokens = false;
    ServedUsers operators;
    std::optional<identity::Certificate> certificate;
    std::shared_ptr<const tls::Authorities> authorities;  // null: clients present no certificates
  };

  // Reads the certificate, the authorities, the tokens and the list of users. `for_others`: other
  // machines can reach the server, so it needs a certificate unless allows_anybody(). With kIsMade,
  // makes the needed certificate if it is missing at the default path.
  enum class MissingKey { kIsMade, kIsLeft };
  Status open(bool for_others, MissingKey missing = MissingKey::kIsMade);
  // Reads the certificate, the authorities and the list of users again, but no tokens. `settings`:
  // the new settings of this server. Does not change this object: pass the result to set(). Call
  // read() after open().
  Result<Trust> read(const Settings& settings, MissingKey missing = MissingKey::kIsMade) const;
  // Replaces the present Trust. Also forgets the accounts of users, so that they are looked up
  // again.
  void set(Trust trust);

  // Whether the server has a certificate.
  bool speaks_tls() const { return trust_.certificate.has_value(); }
  // Whether clients of other machines need neither encryption nor proof.
  bool allows_anybody() const { return security_ == wire::Security::kNone; }
  const ServedUsers& served() const { return trust_.served; }  // operators included
  // Whether an identified client may have a session by the present settings: set() may have changed
  // them since the client was identified.
  bool serves(const Identity& who) const;
  // Whether a user may have a session at all, perhaps only with a token. `account`: null if this
  // machine does not know the user.
  bool may_serve(const Account* account) const;
  // The users that are served, for messages.
  std::string served_text() const;
  // The user of this process, such as "root (uid 0)".
  const std::string& own_user() const { return own_user_; }
  // Whether a client may lease devices to others, end their sessions and drain the server. For a
  // client with a token, the token's roles decide. A client without a token must have proved that
  // its user is an operator, and must not be in a container.
  bool is_operator(const Identity& who) const;
  // The refusal of a client that is not an operator. `what`: its request, such as "drain this
  // server".
  Status not_operator(const Identity& who, const std::string& what) const;
  // Whether a client may see the sessions of all users. Operators may, and so may clients whose
  // token has the role observer.
  bool sees_all(const Identity& who) const;

  // The server's proof for a new connection (common/tls/proof.h). `exported`: the value that the
  // connection exports for kProofLabel. Sets `binding` to the connection's binding.
  Result<wire::Challenge> challenge(const tls::Key& exported, tls::Key* binding) const;
  // Checks the proof in a client's message. `binding`: of the connection on which the message came.
  Result<Proof> examine(const wire::Authenticate& message, const tls::Key& binding);
  // Returns the identity of the client, or nothing while it is being determined. Returns kDenied if
  // the server does not serve that user. If the server is root, it serves root of another machine
  // only if a setting names root.
  std::optional<Result<Identity>> identify(Proof& proof, const std::string& from,
                                           Clock::time_point now);
  // The account of a user of this machine, or nothing while it is being looked up. For a user
  // without an account, the result has the name user_text() and no groups.
  std::optional<Account> account_of(uid_t user, Clock::time_point now);
  // The account of a user of this machine, or nothing while it is being looked up.
  std::optional<Result<Account>> account(const AccountKey& user, Clock::time_point now) {
    return accounts_.find(user, now);
  }
  // Drops the MUNGE check of a connection that has closed.
  void forget(const Proof& proof);

  std::array<int, 2> descriptors() const { return {accounts_.descriptor(), munge_.descriptor()}; }
  void acknowledge();

 private:
  // Whether a token is enough for a session of a client of another machine.
  bool takes_tokens() const { return trust_.takes_all_tokens && speaks_tls(); }
  // Sets trust->certificate, if the server has or needs a certificate.
  Status find_certificate(const Settings& settings, MissingKey missing, Trust* trust) const;
  Result<Proof> examine_token(const wire::Authenticate& message, const tls::Key& binding);

  const Settings& settings_;
  wire::Security security_ = wire::Security::kTls;
  bool for_others_ = false;
  std::string own_user_;
  Trust trust_;
  TokenStore tokens_;
  TokenUses token_uses_;
  std::string token_error_;  // the last logged error
  MungeChecks munge_;
  Accounts accounts_;
};

}  // namespace rcuda::server
