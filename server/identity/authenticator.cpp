#include "server/identity/authenticator.h"

#include <algorithm>
#include <utility>

#include <unistd.h>

#include "common/base/host_name.h"
#include "common/base/log.h"
#include "common/base/passing_error.h"
#include "common/base/random_bytes.h"
#include "common/identity/private_file.h"
#include "common/identity/users.h"
#include "common/tls/authorities.h"
#include "common/tls/proof.h"
#include "server/identity/default_paths.h"

namespace rcuda::server {
namespace {

identity::munge::Settings munge_settings(const Settings& settings) {
  identity::munge::Settings munge;
  munge.socket = settings.munge_socket.get();
  return munge;
}

wire::Security security_of(const Settings& settings) {
  const std::string_view word = settings.security.get();
  return word == "tls" ? wire::Security::kTls : wire::Security::kNone;
}

}  // namespace

std::string certificate_file(const Settings& settings) {
  const std::string& named = settings.certificate.get();
  return named.empty() ? default_certificate_file() : named;
}

std::string tokens_file(const Settings& settings) {
  const std::string& named = settings.tokens.get();
  return named.empty() ? default_tokens_file() : named;
}

Authenticator::Authenticator(const Settings& settings)
    : settings_(settings),
      tokens_(tokens_file(settings)),
      token_uses_(tokens_file(settings)),
      munge_(munge_settings(settings)) {}

Status Authenticator::open(bool for_others, MissingKey missing) {
  security_ = security_of(settings_);
  for_others_ = for_others;
  own_user_ = identity::user_and_number(::geteuid());
  RCUDA_ASSIGN_OR_RETURN(trust_, read(settings_, missing));
  const bool are_used = trust_.certificate || !settings_.tokens.get().empty();
  return are_used ? tokens_.refresh() : Status();
}

Result<Authenticator::Trust> Authenticator::read(const Settings& settings,
                                                 MissingKey missing) const {
  Trust trust;
  Result<ServedUsers> users = ServedUsers::read(settings.users.get());
  if (!users.ok()) return settings.users.at_origin(users.status());
  trust.served = std::move(users).value();
  Result<ServedUsers> operators =
      ServedUsers::read(settings.operators.get(), "RCUDA_SERVER_OPERATORS");
  if (!operators.ok()) return settings.operators.at_origin(operators.status());
  trust.operators = std::move(operators).value();
  trust.served.add(trust.operators);
  trust.takes_all_tokens = settings.users.get().empty();

  RCUDA_RETURN_IF_ERROR(find_certificate(settings, missing, &trust));
  const std::string& file = settings.client_authorities.get();
  if (trust.certificate && !file.empty()) {
    RCUDA_ASSIGN_OR_RETURN(trust.authorities, tls::Authorities::read(file));
  }
  return trust;
}

Status Authenticator::find_certificate(const Settings& settings, MissingKey missing,
                                       Trust* trust) const {
  const bool is_needed = for_others_ && !allows_anybody();
  const std::string& named = settings.certificate.get();
  const std::string path = certificate_file(settings);
  bool made = false;
  auto certificate = identity::load_certificate(path);
  if (certificate.status().code() == Code::kNotFound) {
    if (!named.empty() && named != default_certificate_file()) {
      return settings.certificate.at_origin(
          Status(Code::kInvalidArgument,
                 "RCUDA_SERVER_CERTIFICATE: there is no file " + named +
                     "; put a certificate and its key there, or leave the setting out: the "
                     "server then makes them in " +
                     default_certificate_file()));
    }
    if (trust_.certificate) {
      return Status(Code::kInvalidArgument,
                    "there is no file " + path +
                        " any more; restore it, or restart the server: it then makes a new key, "
                        "and all present tokens become invalid");
    }
    if (!is_needed) return {};
    if (missing == MissingKey::kIsLeft) return identity::check_can_make(path);
    certificate = identity::load_or_make_certificate(path, host_name(), &made);
  }
  if (!certificate.ok() && !is_needed && named.empty()) {
    // A server that serves only its own machine needs no TLS.
    RCUDA_INFO("no TLS: %s", certificate.status().message().c_str());
    return {};
  }
  if (may_pass(certificate.status().sys_errno())) return certificate.status();
  if (!certificate.ok()) return Status(Code::kInvalidArgument, certificate.status().context());
  trust->certificate = std::move(certificate).value();
  if (made) {
    RCUDA_INFO(
        "made a new key for TLS in %s, with the fingerprint %s: tokens for an earlier key of this "
        "server are invalid",
        path.c_str(), identity::fingerprint_text(*trust->certificate).c_str());
  }
  return {};
}

void Authenticator::set(Trust trust) {
  trust_ = std::move(trust);
  accounts_.forget();
}

bool Authenticator::serves(const Identity& who) const {
  if (who.method == "insecure" || (who.roles && trust_.takes_all_tokens)) return true;
  if (!who.uid) return trust_.served.serves_everybody();
  return trust_.served.contains(*who.uid, who.gid, who.groups);
}

bool Authenticator::may_serve(const Account* account) const {
  if (allows_anybody() || takes_tokens() || trust_.served.serves_everybody()) return true;
  return account && trust_.served.contains(account->uid, account->gid, account->groups);
}

std::string Authenticator::served_text() const {
  return trust_.served.text() + (takes_tokens() ? ", users with tokens" : "");
}

bool Authenticator::is_operator(const Identity& who) const {
  if (who.roles) return who.roles->has(Role::kOperator);
  // Root of a container may become any user there, so no user of a container is an operator.
  if (who.method == "insecure" || who.method == kContainer) return false;
  return who.uid && trust_.operators.contains(*who.uid, who.gid, who.groups);
}

Status Authenticator::not_operator(const Identity& who, const std::string& what) const {
  const std::string named =
      ": only the server's own user, root and users in its setting operators "
      "(RCUDA_SERVER_OPERATORS) may";
  const std::string makes_token = "\"rcuda-token create --user " + who.user +
                                  " --role operator\" on the server's machine makes ";
  std::string why = named;
  if (who.roles) {
    why = ": the role of the client's token is " + who.roles->text() + ", not operator; " +
          makes_token +
          "such a token. The role of a token also limits users in the setting operators";
  } else if (who.method != "local socket" && who.method != "ticket") {
    // A client on the server's own machine needs no token.
    why += ", or the holder of a token with the role operator (" + makes_token + "one)";
  }
  return Status(Code::kDenied, "user " + who.user + " may not " + what + why);
}

bool Authenticator::sees_all(const Identity& who) const {
  return (who.roles && who.roles->has(Role::kObserver)) || is_operator(who);
}

Result<wire::Challenge> Authenticator::challenge(const tls::Key& exported,
                                                 tls::Key* binding) const {
  wire::Challenge challenge;
  RCUDA_RETURN_IF_ERROR(fill_randomly(challenge.nonce));
  *binding = tls::binding_of(challenge.nonce, exported);
  challenge.chain = trust_.certificate->chain;
  challenge.signature = tls::sign(*trust_.certificate, tls::Role::kServer, *binding);
  if (challenge.signature.empty()) {
    return Status(Code::kInternal, "cannot sign with the server's key");
  }
  return challenge;
}

Result<Proof> Authenticator::examine(const wire::Authenticate& message, const tls::Key& binding) {
  Proof proof;
  switch (message.method) {
    case wire::Method::kToken:
      return examine_token(message, binding);
    case wire::Method::kCertificate: {
      if (!trust_.authorities) {
        return Status(Code::kDenied,
                      "this server accepts no certificates of users: use a token or MUNGE, or name "
                      "the users' authorities in the server's setting client_authorities");
      }
      RCUDA_ASSIGN_OR_RETURN(proof.account, trust_.authorities->check_client(
                                                message.chain, message.signature, binding));
      proof.method = "certificate";
      return proof;
    }
    case wire::Method::kMunge: {
      RCUDA_ASSIGN_OR_RETURN(proof.check, munge_.begin(message.credential, binding));
      proof.method = "munge";
      return proof;
    }
  }
  return Status(Code::kProtocol,
                "the client names an unknown method of authentication: install the same build of "
                "rcuda on client and server");
}

Result<Proof> Authenticator::examine_token(const wire::Authenticate& message,
                                           const tls::Key& binding) {
  if (Status status = tokens_.refresh(); !status.ok()) {
    if (status.message() != token_error_)
      RCUDA_ERROR("cannot read the tokens, so none is valid: %s", status.message().c_str());
    token_error_ = status.message();
    return Status(Code::kDenied, "the server cannot read its tokens: see its log");
  }
  tls::Key mac;
  std::copy(std::begin(message.mac), std::end(message.mac), mac.begin());
  const auto now =
      std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  RCUDA_ASSIGN_OR_RETURN(TokenStore::Grant grant, tokens_.find(message.id, mac, binding, now));
  if (const Status noted = token_uses_.note(message.id, now); !noted.ok()) {
    RCUDA_WARN("cannot record when tokens are used: %s", noted.message().c_str());
  }
  Proof proof;
  proof.method = "token";
  proof.account = std::move(grant.user);
  proof.roles = grant.roles;
  return proof;
}

std::optional<Result<Identity>> Authenticator::identify(Proof& proof, const std::string& from,
                                                        Clock::time_point now) {
  if (proof.check) {
    std::optional<Result<MungeChecks::Outcome>> outcome = munge_.take(*proof.check);
    if (!outcome) return std::nullopt;
    proof.check.reset();
    if (!outcome->ok()) return Result<Identity>(outcome->status());
    proof.account = (*outcome)->uid;
    proof.answer = std::move((*outcome)->answer);
  }
  const std::string* name = std::get_if<std::string>(&*proof.account);
  const auto not_named = [&](const std::string& user, const std::string& remedy) {
    return Result<Identity>(Status(
        Code::kDenied, "the server does not serve user " + user + ": its setting \"users\" lists " +
                           "only others" + (proof.roles ? ", and also applies to tokens" : "") +
                           "; " + remedy));
  };
  const auto without_account = [&] {
    Identity identity{{}, 0, *name, {}, proof.method, from};
    identity.roles = proof.roles;
    return Result<Identity>(std::move(identity));
  };
  // A client without the role for sessions starts no session, so it needs no account.
  if (proof.roles && !proof.roles->has(Role::kSession)) return without_account();
  const std::optional<Result<Account>> account = accounts_.find(*proof.account, now);
  if (!account) return std::nullopt;
  if (!account->ok()) {
    // A server that is not root runs every session as its own user, even if this machine does not
    // know the client's user.
    if (account->status().code() == Code::kNotFound && proof.roles && name && ::geteuid() != 0) {
      const bool is_served = trust_.takes_all_tokens || trust_.served.serves_everybody();
      return is_served
                 ? without_account()
                 : not_named(*name, "the server's machine does not know " + *name +
                                        "; ask its administrator to set users = \"\" (a token "
                                        "is enough) or users = \"*\" (everybody)");
    }
    return Result<Identity>(account->status());
  }
  const Account& user = **account;
  if (user.uid == 0 && ::geteuid() == 0 && !trust_.served.names_root()) {
    return Result<Identity>(
        Status(Code::kDenied,
               "root of another machine or of a container is not root on the server's machine: run "
               "the program as another user, or add root to the server's setting \"users\" "
               "(--users root) if root of every client may be root there"));
  }
  const bool suffices = proof.roles && trust_.takes_all_tokens;
  if (!suffices && !trust_.served.contains(user.uid, user.gid, user.groups)) {
    return not_named(user.user, "ask its administrator to add " + user.user +
                                    " to the setting, or to a group that the setting names");
  }
  Identity identity{user.uid, user.gid, user.user, user.groups, proof.method, from};
  identity.roles = proof.roles;
  return Result<Identity>(std::move(identity));
}

std::optional<Account> Authenticator::account_of(uid_t user, Clock::time_point now) {
  std::optional<Result<Account>> account = accounts_.find(user, now);
  if (!account) return std::nullopt;
  return account->ok() ? std::move(*account).value() : Account{user, 0, user_text(user), {}};
}

void Authenticator::forget(const Proof& proof) {
  if (proof.check) munge_.forget(*proof.check);
}

void Authenticator::acknowledge() {
  accounts_.acknowledge();
  munge_.acknowledge();
}

}  // namespace rcuda::server
