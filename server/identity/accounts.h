// Accounts: looks up users of this machine by number or name, with their groups, and does not block
// the caller.
//
// The name service of getpwnam() may query another machine and take long, and the daemon's main
// thread must not wait. So threads of this class query it, and answers are kept: an account for a
// minute, an error for ten seconds. At most kMostAtOnce lookups run at the same time; further
// lookups wait.
//
// Threads: one thread calls. Blocking: nothing, not even the destructor; a lookup that hangs keeps
// its thread until it returns. Errors: kNotFound if there is no such user, kSystem if the name
// service failed, kOutOfMemory if no thread could be started.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <sys/types.h>

#include "common/base/async_lookup.h"
#include "common/base/status.h"

namespace rcuda::server {

struct Account {
  uid_t uid = 0;
  gid_t gid = 0;
  std::string user;
  std::vector<gid_t> groups;  // all that initgroups() would set, `gid` included
};

// A user's number or name.
using AccountKey = std::variant<uid_t, std::string>;
AccountKey account_key(const std::string& text);

// Asks the name service and blocks until it answers.
Result<Account> look_up_account(const AccountKey& key);

class Accounts {
 public:
  using Clock = std::chrono::steady_clock;
  using LookUp = std::function<Result<Account>(const AccountKey&)>;
  static constexpr size_t kMostAtOnce = 4;
  static constexpr size_t kMostKept = 4096;

  // `look_up` runs on other threads, perhaps after this object is gone.
  explicit Accounts(LookUp look_up = look_up_account)
      : look_up_(std::move(look_up)), lookups_(kMostAtOnce) {}

  // Returns the answer, or nothing while the name service is being asked. descriptor() becomes
  // readable when the answer is there.
  std::optional<Result<Account>> find(const AccountKey& key, Clock::time_point now);
  // Later calls of find() ask the name service again.
  void forget() { kept_.clear(); }
  int descriptor() const { return lookups_.descriptor(); }
  // Makes descriptor() unreadable until the next answer.
  void acknowledge() { lookups_.acknowledge(); }

 private:
  struct Answer {
    Result<Account> account;
    Clock::time_point at;  // when the name service answered
  };

  const LookUp look_up_;
  AsyncLookup<AccountKey, Answer> lookups_;
  std::map<AccountKey, Answer> kept_;
};

}  // namespace rcuda::server
