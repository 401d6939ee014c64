#include "server/quota/rules.h"

#include <algorithm>
#include <utility>

#include "common/base/list_text.h"
#include "common/base/parse_number.h"
#include "common/base/units.h"
#include "common/config/settings.h"

namespace rcuda::server {
namespace {

using config::TomlItem;

constexpr char kTables[] =
    "[limits.session], [limits.user], [limits.users.NAME], [limits.users.NAME.session], "
    "[limits.groups.NAME] and [limits.groups.NAME.session]";

constexpr auto kLongestTimeNs =
    static_cast<uint64_t>(std::chrono::nanoseconds(kLongestTime).count());

enum class Unit { kBytes, kTime, kCount };

std::optional<uint64_t> parse_ns(const std::string& text) {
  const auto time = parse_time(text);
  return time ? std::optional(static_cast<uint64_t>(time->count())) : std::nullopt;
}

// Reads the number of a text. Returns false if the text has none.
bool parse(Unit unit, const std::string& text, uint64_t* number) {
  if (unit != Unit::kCount) {
    const std::optional<uint64_t> read = unit == Unit::kBytes ? parse_bytes(text) : parse_ns(text);
    *number = read.value_or(0);
    return read.has_value();
  }
  return parse_number(text, number);
}

Status wrong(std::string text) { return Status(Code::kInvalidArgument, std::move(text)); }

}  // namespace

struct Rules::KeyInfo {
  Key key;
  const char* name;
  Unit unit;
  bool in_session;   // is allowed in tables of sessions
  bool in_together;  // is allowed in tables of users and groups
  // Limits of the value. A value below `least` probably lacks its unit; 0 is always allowed.
  uint64_t least, most;
  const char* accepted;
};

const Rules::KeyInfo Rules::kKeys[] = {
    {Key::kDeviceMemory, "device_memory", Unit::kBytes, true, true, 1u << 20, UINT64_MAX,
     "bytes on each device, at least 1M, such as \"40G\"; 0: no limit"},
    {Key::kHostMemory, "host_memory", Unit::kBytes, true, true, 1u << 20, UINT64_MAX,
     "bytes, at least 1M, such as \"8G\"; 0: no limit"},
    {Key::kBandwidth, "bandwidth", Unit::kBytes, true, true, 64u << 10, UINT64_MAX,
     "bytes per second, at least 64K, such as \"10G\"; 0: no limit"},
    {Key::kSessions, "sessions", Unit::kCount, false, true, 0, 100'000,
     "a whole number up to 100000; 0: no limit"},
    {Key::kDevices, "devices", Unit::kCount, true, true, 0, 100'000,
     "a whole number up to 100000; 0: no limit"},
    {Key::kSessionTime, "session_time", Unit::kTime, true, false, 0, kLongestTimeNs,
     "a time up to 100 years, such as \"12h\"; 0: no limit"},
    {Key::kIdleTime, "idle_time", Unit::kTime, true, false, 0, kLongestTimeNs,
     "a time up to 100 years, such as \"30m\"; 0: no limit"},
    {Key::kPriorities, "priorities", Unit::kCount, true, false, 0, 1000,
     "the number of stream priorities above the lowest, up to 1000; 0: only the lowest"},
    {Key::kSmPercent, "sm_percent", Unit::kCount, true, false, 0, 100,
     "a whole number up to 100; 0: no limit"},
    {Key::kPriority, "priority", Unit::kCount, true, false, 0, 1000,
     "a whole number up to 1000; sessions of higher priority displace others"},
};

std::string Rules::known_keys(bool of_session) {
  std::string names;
  for (const KeyInfo& info : kKeys) {
    if (!(of_session ? info.in_session : info.in_together)) continue;
    append_item(&names, info.name);
  }
  return names;
}

Result<Rules> Rules::read(const std::string& path, const Names& names) {
  RCUDA_ASSIGN_OR_RETURN(const std::vector<TomlItem> items, config::read_toml_file(path));
  Rules rules;
  rules.path_ = path;
  for (const TomlItem& item : items) {
    if (item.keys.front() != "limits") continue;
    if (Status status = rules.take(item, names); !status.ok()) {
      return std::move(status).with_context(path + ":" + std::to_string(item.line));
    }
  }
  return rules;
}

Status Rules::take(const TomlItem& item, const Names& names) {
  const bool is_table = item.kind == TomlItem::Kind::kTable;
  std::vector<std::string> keys = item.keys;
  if (!is_table) keys.pop_back();
  std::string where;
  for (const std::string& key : keys) where += (where.empty() ? "[" : ".") + key;
  where += "]";
  // A table that holds only other tables: [limits], [limits.users].
  const bool holds_tables =
      keys.size() == 1 || (keys.size() == 2 && (keys[1] == "users" || keys[1] == "groups"));
  if (holds_tables && is_table) return {};
  if (holds_tables || keys.empty()) {
    return wrong("'" + item.keys.back() + "' is in no table of limits; the tables are " + kTables);
  }
  const bool general = keys.size() == 2 && (keys[1] == "session" || keys[1] == "user");
  const bool named = keys[1] == "users" || keys[1] == "groups";
  const bool of_session = keys.back() == "session" && (general || keys.size() == 4);
  if (!general && !(named && (keys.size() == 3 || (keys.size() == 4 && of_session)))) {
    return wrong(where + " is not a table of limits; the tables are " + kTables);
  }
  Result<Tables*> tables = tables_of(keys, names);
  if (!tables.ok()) return Status(tables.status()).with_context(where);
  if (is_table) return {};
  return set(item, where, of_session, of_session ? &(*tables)->session : &(*tables)->together);
}

Result<Rules::Tables*> Rules::tables_of(const std::vector<std::string>& keys, const Names& names) {
  if (keys[1] == "users") return user_tables(keys[2], names);
  if (keys[1] == "groups") return group_tables(keys[2], names);
  return &general_;
}

Result<Rules::Tables*> Rules::user_tables(const std::string& name, const Names& names) {
  for (auto& [uid, tables] : users_) {
    if (tables.name == name) return &tables;
  }
  RCUDA_ASSIGN_OR_RETURN(const uid_t uid, names.user(name));
  const auto [found, is_new] = users_.try_emplace(uid);
  if (!is_new)
    return wrong("the user is also in [limits.users." + found->second.name + "]: keep one table");
  found->second.name = name;
  return &found->second;
}

Result<Rules::Tables*> Rules::group_tables(const std::string& name, const Names& names) {
  for (Group& group : groups_) {
    if (group.name == name) return &group;
  }
  RCUDA_ASSIGN_OR_RETURN(const gid_t gid, names.group(name));
  for (const Group& group : groups_) {
    if (group.gid == gid)
      return wrong("the group is also in [limits.groups." + group.name + "]: keep one table");
  }
  Group& group = groups_.emplace_back();
  group.name = name;
  group.gid = gid;
  return &group;
}

namespace {
// Returns the other table of the same user or group. `of_session`: `where` is the table for each
// session; otherwise the table for all sessions together.
std::string other_table(const std::string& where, bool of_session) {
  if (where == "[limits.session]") return "[limits.user]";
  if (where == "[limits.user]") return "[limits.session]";
  constexpr std::string_view kSession = ".session]";
  const size_t end = where.size() - (of_session ? kSession.size() : 1);
  return where.substr(0, end) + (of_session ? "]" : std::string(kSession));
}
}  // namespace

Status Rules::set(const TomlItem& item, const std::string& where, bool of_session, Table* table) {
  const std::string& name = item.keys.back();
  const auto info = std::find_if(std::begin(kKeys), std::end(kKeys), [&](const KeyInfo& known) {
    return known.name == name && (of_session ? known.in_session : known.in_together);
  });
  if (info == std::end(kKeys)) {
    const bool is_other = std::ranges::any_of(kKeys, [&](const KeyInfo& known) {
      return known.name == name && (of_session ? known.in_together : known.in_session);
    });
    if (is_other) {
      return wrong("'" + name + "' is not a limit of " + where + "; write it below " +
                   other_table(where, of_session));
    }
    return wrong("'" + name + "' is not a limit of " + where + "; its limits are " +
                 known_keys(of_session) + "; settings of the server are above the first [table]");
  }
  using Kind = TomlItem::Kind;
  uint64_t number = 0;
  if ((item.kind != Kind::kText && item.kind != Kind::kNumber) ||
      !parse(info->unit, item.text, &number) || (number != 0 && number < info->least) ||
      number > info->most) {
    return wrong(name + " = " + item.text + " of " + where + " is not usable: it takes " +
                 info->accepted);
  }
  const std::string place = where + " in " + path_ + ":" + std::to_string(item.line);
  (*table)[info->key] = {number, name + " of " + place};
  text_ += name + " = " + item.text + "  (" + place + ")\n";
  return {};
}

uint64_t Rules::number(const Table& table, Key key) {
  const auto found = table.find(key);
  return found == table.end() ? 0 : found->second.number;
}

Count Rules::count(const Table& table, Key key) {
  const auto found = table.find(key);
  if (found == table.end()) return {};
  return {static_cast<uint32_t>(found->second.number), found->second.rule};
}

Allowance Rules::allowance(const Table& table, std::string of) {
  return {.of = std::move(of),
          .device_memory = number(table, Key::kDeviceMemory),
          .host_memory = number(table, Key::kHostMemory),
          .bandwidth = number(table, Key::kBandwidth)};
}

UserRules Rules::of(std::optional<uid_t> uid, const std::string& name,
                    const std::vector<gid_t>& groups) const {
  UserRules rules;
  // insert() does not replace keys, so the tables that override others are inserted first.
  Table session, together;
  if (const auto own = uid ? users_.find(*uid) : users_.end(); own != users_.end()) {
    session = own->second.session;
    together = own->second.together;
  }
  together.insert(general_.together.begin(), general_.together.end());
  rules.user = {allowance(together, "user " + name), count(together, Key::kSessions),
                count(together, Key::kDevices)};
  for (const Group& group : groups_) {
    if (std::find(groups.begin(), groups.end(), group.gid) == groups.end()) continue;
    session.insert(group.session.begin(), group.session.end());
    if (group.together.empty()) continue;
    rules.groups[group.gid] = {allowance(group.together, "group " + group.name),
                               count(group.together, Key::kSessions),
                               count(group.together, Key::kDevices)};
  }
  session.insert(general_.session.begin(), general_.session.end());
  SessionLimits& limits = rules.session.limits;
  rules.session.allowance = allowance(session, "each session");
  rules.session.devices = count(session, Key::kDevices);
  limits.session_time = std::chrono::nanoseconds(number(session, Key::kSessionTime));
  limits.idle_time = std::chrono::nanoseconds(number(session, Key::kIdleTime));
  if (session.contains(Key::kPriorities)) {
    limits.priorities = static_cast<uint32_t>(number(session, Key::kPriorities));
  }
  limits.sm_percent = static_cast<uint32_t>(number(session, Key::kSmPercent));
  limits.priority = static_cast<uint32_t>(number(session, Key::kPriority));
  return rules;
}

}  // namespace rcuda::server
