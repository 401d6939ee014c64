#include "common/config/settings.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>

#include "common/base/list_text.h"
#include "common/base/lower.h"
#include "common/base/parse_number.h"

namespace rcuda::config {

std::string decimal_text(double number) {
  char text[32];
  const auto [end, error] = std::to_chars(std::begin(text), std::end(text), number);
  return {text, error == std::errc() ? end : text};
}

SettingBase::SettingBase(Registry& registry, const char* variable, const char* help)
    : variable_(variable), help_(help) {
  std::string_view name = variable;
  // Variables that several programs share have the prefix RCUDA_ only.
  for (std::string_view prefix :
       {std::string_view(registry.prefix()), std::string_view("RCUDA_")}) {
    if (name.starts_with(prefix)) {
      name.remove_prefix(prefix.size());
      break;
    }
  }
  key_ = lower(name);
  registry.settings_.push_back(this);
}

Status SettingBase::at_origin(Status status) const {
  const bool is_from_file = origin_.find(':') != std::string::npos;
  return status.ok() || !is_from_file ? status : std::move(status).with_context(origin_);
}

Status SettingBase::set(std::string_view text, std::string_view name, std::string_view origin) {
  if (!parse(trimmed(text))) {
    return Status(Code::kInvalidArgument, std::string(name) + "=" + std::string(text) + " (from " +
                                              std::string(origin) + ") is not usable: it takes " +
                                              accepted());
  }
  origin_ = origin;
  return {};
}

SettingBase* Registry::find_key(std::string_view key) const {
  for (SettingBase* setting : settings_) {
    if (setting->key() == key) return setting;
  }
  return nullptr;
}

Status Registry::load_environment() {
  for (SettingBase* setting : settings_) {
    const char* value = ::secure_getenv(setting->variable());
    if (!value || !*value) continue;
    RCUDA_RETURN_IF_ERROR(setting->set(value, setting->variable(), "the environment"));
  }
  return {};
}

std::vector<std::string> Registry::keys() const {
  std::vector<std::string> keys;
  for (const SettingBase* setting : settings_) keys.push_back(setting->key());
  return keys;
}

std::vector<std::string> Registry::environment() const {
  std::vector<std::string> lines;
  for (const SettingBase* setting : settings_) {
    if (!setting->is_default()) {
      lines.push_back(std::string(setting->variable()) + "=" + setting->text());
    }
  }
  return lines;
}

std::string Registry::describe() const {
  std::string all;
  for (const SettingBase* setting : settings_) {
    all += std::string(setting->variable()) + "=" + setting->text() + "  (" +
           (setting->is_default() ? "default" : "from " + setting->origin()) + "; " +
           setting->accepted() + ")\n    " + setting->help() + "\n";
  }
  return all;
}

bool String::parse(std::string_view text) {
  value_ = text;
  return true;
}

bool Bool::parse(std::string_view text) {
  const std::string word = lower(text);
  if (word == "1" || word == "true" || word == "yes" || word == "on") {
    value_ = true;
  } else if (word == "0" || word == "false" || word == "no" || word == "off") {
    value_ = false;
  } else {
    return false;
  }
  return true;
}

bool Integer::parse(std::string_view text) {
  int64_t value = 0;
  if (!parse_number(text, &value) || value < min_ || value > max_) return false;
  value_ = value;
  return true;
}

std::string Integer::accepted() const {
  return "a whole number from " + std::to_string(min_) + " to " + std::to_string(max_);
}

std::string Decimal::text() const { return decimal_text(value_); }

// Accepts digits, optionally followed by a point and more digits. std::from_chars() for double is
// not used because it would add an exit handler to the client library.
bool Decimal::parse(std::string_view text) {
  const size_t point = std::min(text.find('.'), text.size());
  const std::string_view fraction = text.substr(std::min(point + 1, text.size()));
  constexpr size_t kMostDigits = 9;
  uint64_t whole = 0, part = 0, unit = 1;
  if (!parse_number(text.substr(0, point), &whole)) return false;
  if (point != text.size() && (fraction.size() > kMostDigits || !parse_number(fraction, &part))) {
    return false;
  }
  for (size_t i = 0; i < fraction.size(); ++i) unit *= 10;
  const double value =
      static_cast<double>(whole) + static_cast<double>(part) / static_cast<double>(unit);
  if (value < min_ || value > max_) return false;
  value_ = value;
  return true;
}

std::string Decimal::accepted() const {
  return "a number from " + decimal_text(min_) + " to " + decimal_text(max_) + ", such as 1.5";
}

bool Bytes::parse(std::string_view text) {
  const std::optional<uint64_t> value = parse_bytes(text);
  if (!value || (*value < least_ && (*value != 0 || !takes_zero_))) return false;
  value_ = *value;
  return true;
}

std::string Bytes::accepted() const {
  return "a size such as 64M or 1.5G, at least " + exact_bytes_text(least_) +
         (takes_zero_ ? ", or 0" : "");
}

bool Duration::parse(std::string_view text) {
  const std::optional<std::chrono::nanoseconds> value = parse_time(text);
  if (!value || *value > kLongest) return false;
  value_ = *value;
  return true;
}

bool OrdinalList::parse(std::string_view text) {
  std::vector<uint32_t> values;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    uint32_t value = 0;
    if (!parse_number(trimmed(text.substr(0, comma)), &value)) return false;
    if (std::find(values.begin(), values.end(), value) != values.end()) return false;
    values.push_back(value);
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
    if (text.empty()) return false;
  }
  value_ = std::move(values);
  return true;
}

std::string OrdinalList::text() const { return comma_list(value_); }

bool Choice::parse(std::string_view text) {
  const auto found = std::find(words_.begin(), words_.end(), text);
  if (found == words_.end()) return false;
  index_ = static_cast<size_t>(found - words_.begin());
  return true;
}

std::string Choice::accepted() const {
  std::string all;
  for (const char* word : words_) append_item(&all, word, " | ");
  return all;
}

}  // namespace rcuda::config
