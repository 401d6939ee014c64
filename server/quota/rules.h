// Rules: the limits that a server's configuration file sets, and the limits of one user that follow
// from them.
//
//   [limits.session]               each session of every user
//   [limits.user]                  all sessions of one user together, for every user
//   [limits.users.ada]             in place of [limits.user] for ada, key by key
//   [limits.users.ada.session]     in place of [limits.session], for each session of ada
//   [limits.groups.students]       all members of the group together
//   [limits.groups.students.session]  each session of a member
//
// For each key of a session, the user's own table overrides those of its groups, and these override
// the general table. Among groups, the first in the file decides. docs/quotas.md lists the keys.
//
// Plain values; any thread. Blocking: read() only, for the file and the name lookups. Errors:
// kInvalidArgument with the file, the line and the accepted values; those of the name lookups.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/config/toml_file.h"
#include "server/quota/limits.h"

namespace rcuda::server {

// A limit on the number of sessions or devices at the same time, and the rule that sets it.
struct Count {
  uint32_t most = 0;  // 0: no limit
  std::string rule;   // "sessions of [limits.user] in /etc/rcuda/server.toml:4"
};

// Limits of all sessions of a user or group together.
struct BudgetLimits {
  Allowance allowance;
  Count sessions;
  Count devices;  // each device counts once for each session
};

// Limits of each session of a user.
struct SessionRules {
  Allowance allowance;
  Count devices;
  SessionLimits limits;
};

// The limits of one user.
struct UserRules {
  SessionRules session;
  BudgetLimits user;
  std::map<gid_t, BudgetLimits> groups;  // of the user's groups, those that have limits
};

class Rules {
 public:
  // Look-ups of names on this machine. kNotFound: there is no such name.
  struct Names {
    std::function<Result<uid_t>(const std::string& name)> user;
    std::function<Result<gid_t>(const std::string& name)> group;
  };

  Rules() = default;  // no limits
  static Result<Rules> read(const std::string& path, const Names& names);

  // `uid`: none for a user that this machine does not know. `name`: for messages. `groups`: all
  // groups of the user.
  UserRules of(std::optional<uid_t> uid, const std::string& name,
               const std::vector<gid_t>& groups) const;

  bool limits_groups() const { return !groups_.empty(); }
  // Whether both set the same limits, regardless of their places in the files.
  bool same_limits(const Rules& other) const {
    return general_ == other.general_ && users_ == other.users_ && groups_ == other.groups_;
  }
  // One line for each limit of the file and its place, for people.
  const std::string& text() const { return text_; }

 private:
  enum class Key {
    kDeviceMemory,
    kHostMemory,
    kBandwidth,
    kSessions,
    kDevices,
    kSessionTime,
    kIdleTime,
    kPriorities,
    kSmPercent,
    kPriority
  };
  struct Value {
    uint64_t number = 0;  // bytes, bytes per second, nanoseconds or a count
    std::string rule;
    bool operator==(const Value& other) const { return number == other.number; }
  };
  using Table = std::map<Key, Value>;
  // The limits that the file sets for a user, for a group, or for everybody.
  struct Tables {
    std::string name;  // as the file names it
    Table together;    // for all sessions
    Table session;     // for each session
    bool operator==(const Tables&) const = default;
  };
  struct Group : Tables {
    gid_t gid = 0;
    bool operator==(const Group&) const = default;
  };
  struct KeyInfo;
  static const KeyInfo kKeys[];

  static std::string known_keys(bool of_session);
  static uint64_t number(const Table& table, Key key);
  static Count count(const Table& table, Key key);
  static Allowance allowance(const Table& table, std::string of);

  Status take(const config::TomlItem& item, const Names& names);
  // The tables that `keys` name.
  Result<Tables*> tables_of(const std::vector<std::string>& keys, const Names& names);
  Result<Tables*> user_tables(const std::string& name, const Names& names);
  Result<Tables*> group_tables(const std::string& name, const Names& names);
  Status set(const config::TomlItem& item, const std::string& where, bool of_session, Table* table);

  std::string path_;
  Tables general_;
  std::map<uid_t, Tables> users_;
  std::vector<Group> groups_;  // in the order of the file
  std::string text_;
};

}  // namespace rcuda::server
