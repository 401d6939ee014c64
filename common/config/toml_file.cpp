#include "common/config/toml_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

// In a release build toml++ 3.3 turns its assertions into assumptions for the compiler. Malformed
// text violates one of them (in parse_key()). Without the assumption the parser reports such text
// as an error.
#define TOML_ASSERT(condition) static_assert(true)
#include <toml++/impl/preprocessor.h>
#undef TOML_ASSERT_ASSUME
#define TOML_ASSERT_ASSUME(condition) static_assert(true)
#include <toml++/toml.h>

#include "common/base/list_text.h"
#include "common/base/nearest.h"
#include "common/base/printable.h"
#include "common/config/toml_text.h"

namespace rcuda::config {
namespace {

std::string at(const std::string& path, size_t line) {
  return path + ":" + std::to_string(line) + ": ";
}

// Returns the items of a list with commas between them. Returns nullopt if an item is neither a
// text nor a whole number.
std::optional<std::string> joined(const toml::array& list) {
  std::string text;
  for (const toml::node& item : list) {
    const auto number = item.value_exact<int64_t>();
    const auto word = item.value_exact<std::string>();
    if (!number && !word) return std::nullopt;
    append_item(&text, number ? std::to_string(*number) : *word, ",");
  }
  return text;
}

// Sets kind and text. Returns false for a value for which TomlItem has no Kind, such as a date.
bool take_value(const toml::node& node, TomlItem* item) {
  using Kind = TomlItem::Kind;
  if (const auto text = node.value_exact<std::string>()) {
    *item = {std::move(item->keys), Kind::kText, *text, item->line};
  } else if (const auto number = node.value_exact<int64_t>()) {
    *item = {std::move(item->keys), Kind::kNumber, std::to_string(*number), item->line};
  } else if (const auto decimal = node.value_exact<double>()) {
    *item = {std::move(item->keys), Kind::kNumber, decimal_text(*decimal), item->line};
  } else if (const auto flag = node.value_exact<bool>()) {
    *item = {std::move(item->keys), Kind::kFlag, *flag ? "true" : "false", item->line};
  } else if (const toml::array* const list = node.as_array()) {
    std::optional<std::string> text = joined(*list);
    if (!text) return false;
    *item = {std::move(item->keys), Kind::kList, std::move(*text), item->line};
  } else {
    return false;
  }
  return true;
}

std::string dotted(const std::vector<std::string>& keys) {
  std::string text;
  for (const std::string& key : keys) append_item(&text, key, ".");
  return text;
}

Status collect(const toml::table& table, const std::vector<std::string>& above,
               const std::string& path, std::vector<TomlItem>* items) {
  for (const auto& [key, node] : table) {
    TomlItem item;
    item.keys = above;
    item.keys.emplace_back(key.str());
    item.line = node.source().begin.line;
    if (const toml::table* const inner = node.as_table()) {
      items->push_back(item);
      RCUDA_RETURN_IF_ERROR(collect(*inner, item.keys, path, items));
    } else if (take_value(node, &item)) {
      items->push_back(std::move(item));
    } else {
      return Status(Code::kInvalidArgument,
                    at(path, item.line) + "'" + dotted(item.keys) +
                        "' has an invalid type: write a text in quotes, a number, true or false, "
                        "or a list of texts and whole numbers");
    }
  }
  return {};
}

// Returns the line with this number. The first line has the number 1.
std::string_view line_of(std::string_view text, size_t number) {
  for (; number > 1 && !text.empty(); --number) {
    text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  }
  constexpr size_t kMost = 120;  // bytes; longer lines are cut in messages
  return trimmed(text.substr(0, std::min(text.find('\n'), kMost)));
}

// Returns the line without its comment.
std::string_view without_comment(std::string_view line) {
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote == 0 && c == '#') return trimmed(line.substr(0, i));
    if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else if (c == quote) {
      quote = 0;
    }
  }
  return line;
}

// Explains an error in a line that toml++ refuses, in terms that a user of the settings knows.
// `description` is toml++'s own error text, for lines without a better explanation.
std::string explain(std::string_view line, std::string_view description) {
  constexpr const char* kForms =
      "write NAME = \"text\", NAME = 12, NAME = true, NAME = [\"a\", \"b\"] or [table]";
  const std::string reason = " (" + std::string(description) + ")";
  line = without_comment(line);
  const size_t equals = line.find('=');
  const std::string name(trimmed(line.substr(0, equals)));
  const bool is_name = !name.empty() && name.find_first_of("[]\"'#{}, ") == std::string::npos;
  if (description.find("redefine") != description.npos) {
    return "'" + std::string(is_name ? name : line) + "' appears twice: remove one of them";
  }
  if (line.empty()) return "a value or list that begins above this line is not closed" + reason;
  if (line.starts_with('[')) {
    return "'" + std::string(line) +
           "' is not the name of a table: write [limits.user], or [limits.users.\"a b\"] for a "
           "name with blanks";
  }
  if (equals == line.npos || !is_name) {
    return "'" + std::string(line) + "' is not a setting: " + kForms + reason;
  }
  const std::string value(trimmed(line.substr(equals + 1)));
  if (value.empty()) return name + " has no value: " + kForms;
  const char quote = value.front();
  if ((quote == '"' || quote == '\'') && value.find(quote, 1) == value.npos) {
    return "the text of " + name + " has no closing quote: write " + name + " = " + value + quote;
  }
  const bool is_number = value.find_first_not_of("0123456789 _+-") == value.npos;
  if (!is_number && value.find_first_of("\"'[]{}=") == value.npos) {
    return name + " = " + value + " lacks quotes: write " + name + " = \"" + value + "\"";
  }
  return "the value of " + name + " is not usable: " + kForms + reason;
}

// Reads the whole file.
Result<std::string> read_text_of(const std::string& path) {
  std::error_code error;
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (std::filesystem::is_directory(path, error)) {
    return Status(Code::kInvalidArgument, path + " is a folder: name a file");
  }
  if (!file) {
    const int reason = errno;
    if (reason == ENOENT) {
      return Status(Code::kInvalidArgument, "there is no file " + path + ": correct its name");
    }
    return Status(Code::kInvalidArgument, "cannot read " + path + ": " + std::strerror(reason));
  }
  std::string text(std::istreambuf_iterator<char>(file), {});
  // An editor may begin a file with a byte-order mark: EF BB BF for UTF-8, FF FE or FE FF for
  // UTF-16.
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) {
    return Status(Code::kInvalidArgument, path + " is in UTF-16: save it as UTF-8");
  }
  return text;
}

// The server may load libraries that its settings name. So a server of root takes settings only
// from a file that root owns and that no other user can write. Other servers take a file of any
// owner, because files that are mounted into a container may have any owner. The group of their
// user may write the file, because a umask of 002 makes files writable for the group.
Status check_writers(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  const bool is_root = ::geteuid() == 0;
  if (is_root && status.st_uid != 0) {
    return Status(Code::kDenied, "user " + std::to_string(status.st_uid) + " owns " + path +
                                     " and can change the settings: chown it to root");
  }
  const bool is_own_group = !is_root && status.st_gid == ::getegid();
  if ((status.st_mode & (is_own_group ? S_IWOTH : S_IWGRP | S_IWOTH)) == 0) return {};
  return Status(Code::kDenied, "other users can write " + path + ": chmod go-w " + path);
}

// `others`: the table that load_toml_file() skips.
Status unknown_key(const Registry& registry, const TomlItem& item, const std::string& name,
                   const std::string& others) {
  if (item.keys.size() > 1 && !others.empty()) {
    const std::string table = did_you_mean(item.keys.front(), {others});
    if (!table.empty()) {
      return Status(Code::kInvalidArgument, "'" + item.keys.front() + "' is not a table" + table);
    }
  }
  std::string remedy = did_you_mean(name, registry.keys());
  if (item.keys.size() > 1 && registry.find_key(item.keys.back())) {
    remedy = "; write " + item.keys.back() + " above the first [table]";
  }
  if (remedy.empty()) {
    for (const std::string& key : registry.keys()) append_item(&remedy, key);
    remedy = "; the settings are: " + remedy;
  }
  return Status(Code::kInvalidArgument, "'" + name + "' is not a setting" + remedy);
}

}  // namespace

Result<std::vector<TomlItem>> read_toml_file(const std::string& path) {
  std::vector<TomlItem> items;
  RCUDA_ASSIGN_OR_RETURN(const std::string text, read_text_of(path));
  if (const auto line = foreign_character(text)) {
    return Status(Code::kInvalidArgument,
                  at(path, *line) +
                      "only comment lines may contain characters outside ASCII: between double "
                      "quotes, write them as escapes (such as \\u00e9)");
  }
  try {
    RCUDA_RETURN_IF_ERROR(collect(toml::parse(text, path), {}, path, &items));
  } catch (const toml::parse_error& error) {
    const size_t line = error.source().begin.line;
    return Status(Code::kInvalidArgument,
                  printable(at(path, line) + explain(line_of(text, line), error.description())));
  }
  std::stable_sort(items.begin(), items.end(),
                   [](const TomlItem& a, const TomlItem& b) { return a.line < b.line; });
  return items;
}

Status load_toml_file(Registry& registry, const std::string& path, const char* others) {
  RCUDA_RETURN_IF_ERROR(check_writers(path));
  RCUDA_ASSIGN_OR_RETURN(const std::vector<TomlItem> items, read_toml_file(path));
  for (const TomlItem& item : items) {
    if (item.kind == TomlItem::Kind::kTable) continue;
    if (item.keys.size() > 1 && item.keys.front() == others) continue;
    std::string name;
    for (const std::string& key : item.keys) append_item(&name, key, "_");
    const std::string place = path + ":" + std::to_string(item.line);
    SettingBase* const setting = registry.find_key(name);
    if (!setting) return unknown_key(registry, item, name, others).with_context(place);
    RCUDA_RETURN_IF_ERROR(setting->set(item.text, name, place));
  }
  return {};
}

}  // namespace rcuda::config
