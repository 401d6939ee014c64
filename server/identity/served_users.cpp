#include "server/identity/served_users.h"

#include <algorithm>
#include <sstream>

#include <unistd.h>

#include "common/base/list_text.h"
#include "common/identity/users.h"
#include "server/identity/accounts.h"

namespace rcuda::server {
namespace {

constexpr uid_t kRoot = 0;

// An unknown name is not an invalid setting: the user database may not be reachable yet.
Status unknown(const char* setting, const std::string& word, const Status& why) {
  const Code code = why.code() == Code::kNotFound ? Code::kNotFound : Code::kUnavailable;
  return Status(code, std::string(setting) + " names \"" + word + "\": " + why.context());
}

}  // namespace

Result<ServedUsers> ServedUsers::read(const std::string& list, const char* setting) {
  ServedUsers users;
  users.users_ = {kRoot, ::geteuid()};
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    const size_t first = word.find_first_not_of(' ');
    if (first == std::string::npos) continue;
    word = word.substr(first, word.find_last_not_of(' ') + 1 - first);
    if (word == "*") {
      users.everybody_ = true;
      continue;
    }
    if (word.front() == '@') {
      const Result<gid_t> group = identity::group_id(word.substr(1));
      if (!group.ok()) return unknown(setting, word, group.status());
      users.groups_.insert(*group);
      continue;
    }
    const AccountKey key = account_key(word);
    if (const uid_t* uid = std::get_if<uid_t>(&key)) {
      users.users_.insert(*uid);
      users.names_root_ |= *uid == kRoot;
      continue;
    }
    const Result<Account> account = look_up_account(key);
    if (!account.ok()) return unknown(setting, word, account.status());
    users.users_.insert(account->uid);
    users.names_root_ |= account->uid == kRoot;
  }
  return users;
}

void ServedUsers::add(const ServedUsers& more) {
  everybody_ = everybody_ || more.everybody_;
  names_root_ = names_root_ || more.names_root_;
  users_.insert(more.users_.begin(), more.users_.end());
  groups_.insert(more.groups_.begin(), more.groups_.end());
}

bool ServedUsers::contains(uid_t user, gid_t group, const std::vector<gid_t>& groups) const {
  return everybody_ || users_.contains(user) || groups_.contains(group) ||
         std::any_of(groups.begin(), groups.end(),
                     [&](gid_t other) { return groups_.contains(other); });
}

std::optional<gid_t> ServedUsers::only_group() const {
  const bool others = std::any_of(users_.begin(), users_.end(),
                                  [](uid_t user) { return user != kRoot && user != ::geteuid(); });
  if (everybody_ || others || groups_.size() != 1) return std::nullopt;
  return *groups_.begin();
}

std::string ServedUsers::text() const {
  if (everybody_) return "every user";
  std::string text;
  for (const uid_t user : users_) {
    append_item(&text, identity::user_and_number(user));
  }
  for (const gid_t group : groups_) {
    text += ", group " + identity::group_name(group) + " (gid " + std::to_string(group) + ")";
  }
  return text;
}

}  // namespace rcuda::server
