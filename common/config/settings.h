// Settings: declared once with type, default and help; filled from the environment and, where a
// program has one, a TOML file and its command line.
//
// A later source overrides an earlier one: a program loads the file first, then the environment,
// then its options. An absent or empty variable changes nothing. A malformed setting is an error
// that names its source and the accepted values. Each setting remembers the source of its value.
// Registries and settings are used by one thread. A registry must not outlive its settings. Only
// reading the file (toml_file.h) blocks. Nothing throws.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"

namespace rcuda::config {

class Registry;

// Returns the shortest text of this number: "2", "1.5".
std::string decimal_text(double number);

class SettingBase {
 public:
  SettingBase(Registry& registry, const char* variable, const char* help);
  virtual ~SettingBase() = default;
  SettingBase(const SettingBase&) = delete;
  SettingBase& operator=(const SettingBase&) = delete;

  const char* variable() const { return variable_; }
  // The key in a TOML file: the variable's name in lower case, without the prefix.
  const std::string& key() const { return key_; }
  const char* help() const { return help_; }
  bool is_default() const { return origin_.empty(); }
  // "the environment", "rcuda.toml:3", "--port"; empty for the default.
  const std::string& origin() const { return origin_; }

  // If a file set the value, prefixes an error of the value with file and line: "rcuda.toml:3: ".
  Status at_origin(Status status) const;

  // Sets the value from text. `origin` is the source of the text, `name` the setting's name there.
  Status set(std::string_view text, std::string_view name, std::string_view origin);
  virtual std::string text() const = 0;      // parses back to the value
  virtual std::string accepted() const = 0;  // for messages: "a whole number from 0 to 65535"

 protected:
  virtual bool parse(std::string_view text) = 0;  // false: the text is invalid, nothing changes

 private:
  const char* variable_;
  const char* help_;
  std::string key_;
  std::string origin_;
};

class Registry {
 public:
  // `prefix` is the start of this program's variables, such as "RCUDA_SERVER_".
  explicit Registry(const char* prefix) : prefix_(prefix) {}
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  const char* prefix() const { return prefix_; }
  const std::vector<SettingBase*>& settings() const { return settings_; }
  SettingBase* find_key(std::string_view key) const;

  Status load_environment();
  // Returns the keys of all settings.
  std::vector<std::string> keys() const;
  // Returns "NAME=value" for every setting that differs from its default, for the environment of a
  // child.
  std::vector<std::string> environment() const;
  // Returns two lines for each setting: first its variable, value, origin and accepted values, then
  // its help.
  std::string describe() const;

 private:
  friend class SettingBase;
  const char* prefix_;
  std::vector<SettingBase*> settings_;
};

class String : public SettingBase {
 public:
  String(Registry& registry, const char* variable, const char* initial, const char* help)
      : SettingBase(registry, variable, help), value_(initial) {}
  const std::string& get() const { return value_; }
  std::string text() const override { return value_; }
  std::string accepted() const override { return "text"; }

 protected:
  bool parse(std::string_view text) override;

 private:
  std::string value_;
};

// A yes or no: "1", "0", "true", "false", "yes", "no", "on", "off".
class Bool : public SettingBase {
 public:
  Bool(Registry& registry, const char* variable, bool initial, const char* help)
      : SettingBase(registry, variable, help), value_(initial) {}
  bool get() const { return value_; }
  std::string text() const override { return value_ ? "1" : "0"; }
  std::string accepted() const override { return "0 or 1 (also true, false, yes, no, on, off)"; }

 protected:
  bool parse(std::string_view text) override;

 private:
  bool value_;
};

class Integer : public SettingBase {
 public:
  Integer(Registry& registry, const char* variable, int64_t initial, int64_t min, int64_t max,
          const char* help)
      : SettingBase(registry, variable, help), value_(initial), min_(min), max_(max) {}
  int64_t get() const { return value_; }
  std::string text() const override { return std::to_string(value_); }
  std::string accepted() const override;

 protected:
  bool parse(std::string_view text) override;

 private:
  int64_t value_;
  int64_t min_, max_;
};

// A number that may have a fraction, such as 1.5.
class Decimal : public SettingBase {
 public:
  Decimal(Registry& registry, const char* variable, double initial, double min, double max,
          const char* help)
      : SettingBase(registry, variable, help), value_(initial), min_(min), max_(max) {}
  double get() const { return value_; }
  std::string text() const override;
  std::string accepted() const override;

 protected:
  bool parse(std::string_view text) override;

 private:
  double value_;
  double min_, max_;
};

// A size (common/base/units.h). A size below `least` is refused: most likely its unit was
// forgotten. 0 is accepted if it is the default.
class Bytes : public SettingBase {
 public:
  Bytes(Registry& registry, const char* variable, uint64_t initial, uint64_t least,
        const char* help)
      : SettingBase(registry, variable, help),
        value_(initial),
        least_(least),
        takes_zero_(initial == 0) {}
  uint64_t get() const { return value_; }
  std::string text() const override { return exact_bytes_text(value_); }
  std::string accepted() const override;

 protected:
  bool parse(std::string_view text) override;

 private:
  uint64_t value_;
  uint64_t least_;
  bool takes_zero_;
};

// A time (common/base/units.h), at most kLongest: messages carry it as milliseconds in 32 bits.
class Duration : public SettingBase {
 public:
  static constexpr std::chrono::hours kLongest{49 * 24};

  Duration(Registry& registry, const char* variable, std::chrono::nanoseconds initial,
           const char* help)
      : SettingBase(registry, variable, help), value_(initial) {}
  std::chrono::nanoseconds get() const { return value_; }
  // Rounded up, so that only a time of 0 becomes 0. For some settings 0 has a special meaning.
  std::chrono::milliseconds milliseconds() const {
    return std::chrono::ceil<std::chrono::milliseconds>(value_);
  }
  std::string text() const override { return time_text(value_); }
  std::string accepted() const override {
    return "a time such as 80us, 250ms, 10s, 5m, 2h or 1d, 49 days at most";
  }

 protected:
  bool parse(std::string_view text) override;

 private:
  std::chrono::nanoseconds value_;
};

// A list of numbers, such as the devices "0,2,3". An empty text is an empty list.
class OrdinalList : public SettingBase {
 public:
  OrdinalList(Registry& registry, const char* variable, const char* help)
      : SettingBase(registry, variable, help) {}
  const std::vector<uint32_t>& get() const { return value_; }
  std::string text() const override;
  std::string accepted() const override { return "numbers separated by commas, such as 0,1"; }

 protected:
  bool parse(std::string_view text) override;

 private:
  std::vector<uint32_t> value_;
};

// One of a fixed set of words.
class Choice : public SettingBase {
 public:
  // The first word is the default.
  Choice(Registry& registry, const char* variable, std::vector<const char*> words, const char* help)
      : SettingBase(registry, variable, help), words_(std::move(words)) {}
  std::string_view get() const { return words_[index_]; }
  size_t index() const { return index_; }  // of the value in `words`
  std::string text() const override { return words_[index_]; }
  std::string accepted() const override;

 protected:
  bool parse(std::string_view text) override;

 private:
  std::vector<const char*> words_;
  size_t index_ = 0;
};

}  // namespace rcuda::config
