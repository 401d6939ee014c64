// CommandLine: the options and subcommands of a program.
//
// A thin layer over CLI11, whose headers take ten seconds to compile. A program declares its
// options with the variables that receive their values, calls parse(), and ends if parse() returns
// an exit status. The variables must outlive parse(); their values before parse() are the defaults.
// One thread. Nothing throws.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace rcuda::config {

// A declared option. A handle: the CommandLine owns the option.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option& required();
  // The value's name in the help; an empty text hides it.
  Option& type_name(const std::string& name);
  Option& show_default();
  Option& hide_from_help();
  Option& excludes(const Option& other);
  // Values are separated by `separator` within one argument.
  Option& separated_by(char separator);
  Option& takes(int values);
  // The last value counts if the option is repeated.
  Option& take_last();
  Option& one_of(const std::vector<std::string>& values);
  // Each value is a size, as parse_bytes() reads it. The value becomes a number of bytes.
  Option& as_bytes();
  // Each value is a time from `least` to `most`, as parse_time() reads it. The value becomes a
  // number of seconds.
  Option& as_seconds(std::chrono::nanoseconds least, std::chrono::nanoseconds most);
  // Each value is a number in this range.
  Option& within(double least, double most);
  // Each value must pass `check`. The error of `check` need not contain the option's name.
  Option& check(std::function<Status(const std::string& value)> check);

 private:
  CLI::Option* option_;
};

// Prints a line on stderr for each variable of the environment that begins with RCUDA_ and that
// rcuda does not know (variables.h).
void report_unknown_variables(const std::string& program);

class CommandLine {
 public:
  // `version`: the output of --version; if empty, there is no option --version.
  CommandLine(const std::string& name, const std::string& description,
              const std::string& version = "");
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // `names` is one name or several, separated by commas; a name without a dash is a positional
  // argument.
  // T: std::string, int, uint16_t, uint32_t, uint64_t, double, or a vector of texts or numbers.
  template <typename T>
  Option option(const std::string& names, T* value, const std::string& help = "");
  // parse() passes the text to `set`. An error of `set` is an error of the command line.
  Option option(const std::string& names, std::function<Status(const std::string& text)> set,
                const std::string& help);
  Option flag(const std::string& names, bool* value, const std::string& help = "");
  Option flag(const std::string& names, std::function<void()> set, const std::string& help);

  // The reference is valid as long as this object. A subcommand inherits the footer that
  // is set before the subcommand is added.
  CommandLine& subcommand(const std::string& name, const std::string& help);
  std::vector<std::string> subcommands() const;  // their names
  void require_subcommand(int least, int most);
  void footer(const std::string& text);
  // Makes parse() stop at the first argument that is not an option of this program. rest() returns
  // this argument and all arguments after it.
  void leave_rest();
  std::vector<std::string> rest() const;
  // The error for a word that looks like an option but is not an option of this program or of the
  // subcommand on the command line. It names the nearest option.
  std::string unknown_option(const std::string& word) const;
  // For a program that reports unknown environment variables itself: parse() does not report them.
  void leave_variables() { reports_variables_ = false; }

  // Returns nullopt if the program continues. Otherwise returns the exit status with which the
  // program must end: 0 after --help or --version, kWrongUse after an error. Prints the error with
  // the program's name and, for a misspelt option, the nearest option. If the program continues,
  // also reports unknown environment variables that begin with RCUDA_, unless leave_variables() or
  // leave_rest() was called. (After leave_rest(), the program that rest() names reports these
  // variables.)
  [[nodiscard]] std::optional<int> parse(int argc, const char* const* argv);
  static constexpr int kWrongUse = 2;
  // Whether parse() found this subcommand.
  bool is_chosen() const;

 private:
  explicit CommandLine(CLI::App* subcommand);

  std::unique_ptr<CLI::App> owned_;  // null in a subcommand
  CLI::App* app_;
  bool reports_variables_ = true;
  std::vector<std::unique_ptr<CommandLine>> subcommands_;
};

}  // namespace rcuda::config
