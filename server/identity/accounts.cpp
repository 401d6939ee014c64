#include "server/identity/accounts.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <grp.h>
#include <pwd.h>

#include "common/base/parse_number.h"

namespace rcuda::server {
namespace {

constexpr auto kKeepAccount = std::chrono::minutes(1);
constexpr auto kKeepError = std::chrono::seconds(10);
constexpr int kMostGroups = 65536;  // the kernel's limit for one process

std::string text_of(const AccountKey& key) {
  const uid_t* uid = std::get_if<uid_t>(&key);
  return uid ? "uid " + std::to_string(*uid) : "user " + std::get<std::string>(key);
}

}  // namespace

AccountKey account_key(const std::string& text) {
  uid_t number = 0;
  if (parse_number(text, &number)) return number;
  return text;
}

Result<Account> look_up_account(const AccountKey& key) {
  std::vector<char> text(16u << 10);
  passwd entry{};
  passwd* found = nullptr;
  int error = 0;
  for (;;) {
    const uid_t* uid = std::get_if<uid_t>(&key);
    error = uid ? ::getpwuid_r(*uid, &entry, text.data(), text.size(), &found)
                : ::getpwnam_r(std::get<std::string>(key).c_str(), &entry, text.data(), text.size(),
                               &found);
    if (error == EINTR) continue;
    if (error != ERANGE || text.size() > (1u << 20)) break;
    text.resize(2 * text.size());
  }
  // Some name services report an unknown user as one of these errors.
  const bool unknown = error == ENOENT || error == ESRCH || error == EBADF || error == EPERM;
  if (!found && (error == 0 || unknown)) {
    return Status(Code::kNotFound,
                  "the user database of the server's machine has no " + text_of(key));
  }
  if (!found) return Status::from_errno(error, "looking up " + text_of(key));

  Account account{entry.pw_uid, entry.pw_gid, entry.pw_name, {}};
  int count = 64;
  do {
    account.groups.resize(static_cast<size_t>(count));
  } while (::getgrouplist(entry.pw_name, entry.pw_gid, account.groups.data(), &count) < 0);
  account.groups.resize(static_cast<size_t>(std::min(count, kMostGroups)));
  return account;
}

std::optional<Result<Account>> Accounts::find(const AccountKey& key, Clock::time_point now) {
  for (auto& [asked, answer] : lookups_.take_all()) {
    if (kept_.size() >= kMostKept) kept_.clear();
    kept_.insert_or_assign(asked, std::move(answer));
  }
  if (const auto found = kept_.find(key); found != kept_.end()) {
    const Answer& answer = found->second;
    // The age of an answer counts from the time when the name service gave it.
    const auto keep = answer.account.ok() ? Clock::duration(kKeepAccount) : kKeepError;
    if (now < answer.at + keep) return answer.account;
  }
  if (lookups_.is_asked(key)) return std::nullopt;
  Status asked = lookups_.ask(key, [look_up = look_up_, key] {
    Result<Account> account = look_up(key);
    return Answer{std::move(account), Clock::now()};
  });
  if (asked.ok()) return std::nullopt;
  return Result<Account>(std::move(asked).with_context("looking up " + text_of(key)));
}

}  // namespace rcuda::server
