#include "common/config/command_line.h"

#include <utility>

#include <CLI/CLI.hpp>

#include "common/base/units.h"

namespace rcuda::config {

Option& Option::required() {
  option_->required();
  return *this;
}

Option& Option::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

Option& Option::show_default() {
  option_->capture_default_str();
  return *this;
}

Option& Option::hide_from_help() {
  option_->group("");
  return *this;
}

Option& Option::excludes(const Option& other) {
  option_->excludes(other.option_);
  return *this;
}

Option& Option::separated_by(char separator) {
  option_->delimiter(separator);
  return *this;
}

Option& Option::takes(int values) {
  option_->expected(values);
  return *this;
}

Option& Option::take_last() {
  option_->take_last();
  return *this;
}

Option& Option::within(double least, double most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Option& Option::one_of(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return *this;
}

Option& Option::as_bytes() {
  option_->transform(CLI::Validator(
      [](std::string& value) {
        const std::optional<uint64_t> bytes = parse_bytes(value);
        if (!bytes) return "\"" + value + "\" is not a size: write for example 64M or 1.5G";
        value = std::to_string(*bytes);
        return std::string();
      },
      "SIZE"));
  return *this;
}

Option& Option::check(std::function<Status(const std::string& value)> check) {
  option_->check(CLI::Validator(
      [check = std::move(check)](std::string& value) {
        const Status status = check(value);
        if (!status.ok()) throw CLI::ValidationError(status.context());
        return std::string();
      },
      ""));
  return *this;
}

CommandLine::CommandLine(const std::string& name, const std::string& description,
                         const std::string& version)
    : owned_(std::make_unique<CLI::App>(description, name)), app_(owned_.get()) {
  if (!version.empty()) app_->set_version_flag("--version", version);
}

CommandLine::CommandLine(CLI::App* subcommand) : app_(subcommand) {}

CommandLine::~CommandLine() = default;

template <typename T>
Option CommandLine::option(const std::string& names, T* value, const std::string& help) {
  return Option(app_->add_option(names, *value, help));
}
template Option CommandLine::option(const std::string&, std::string*, const std::string&);
template Option CommandLine::option(const std::string&, int*, const std::string&);
template Option CommandLine::option(const std::string&, uint16_t*, const std::string&);
template Option CommandLine::option(const std::string&, uint32_t*, const std::string&);
template Option CommandLine::option(const std::string&, uint64_t*, const std::string&);
template Option CommandLine::option(const std::string&, double*, const std::string&);
template Option CommandLine::option(const std::string&, std::vector<std::string>*,
                                    const std::string&);
template Option CommandLine::option(const std::string&, std::vector<int>*, const std::string&);
template Option CommandLine::option(const std::string&, std::vector<uint64_t>*, const std::string&);

Option CommandLine::option(const std::string& names,
                           std::function<Status(const std::string& text)> set,
                           const std::string& help) {
  return Option(app_->add_option_function<std::string>(
      names,
      [set = std::move(set)](const std::string& text) {
        const Status status = set(text);
        if (!status.ok()) throw CLI::ValidationError(status.context());
      },
      help));
}

Option CommandLine::flag(const std::string& names, bool* value, const std::string& help) {
  return Option(app_->add_flag(names, *value, help));
}

Option CommandLine::flag(const std::string& names, std::function<void()> set,
                         const std::string& help) {
  return Option(app_->add_flag_callback(names, std::move(set), help));
}

CommandLine& CommandLine::subcommand(const std::string& name, const std::string& help) {
  subcommands_.push_back(
      std::unique_ptr<CommandLine>(new CommandLine(app_->add_subcommand(name, help))));
  return *subcommands_.back();
}

void CommandLine::require_subcommand(int least, int most) {
  app_->require_subcommand(static_cast<size_t>(least), static_cast<size_t>(most));
}

void CommandLine::footer(const std::string& text) { app_->footer(text); }

void CommandLine::leave_rest() { app_->prefix_command(); }

std::vector<std::string> CommandLine::rest() const { return app_->remaining(); }

std::optional<int> CommandLine::parse(int argc, const char* const* argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app_->exit(error);
  }
  return std::nullopt;
}

bool CommandLine::is_chosen() const { return app_->parsed(); }

}  // namespace rcuda::config
