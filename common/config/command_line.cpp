#include "common/config/command_line.h"

#include <chrono>
#include <cstdio>
#include <utility>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "common/base/nearest.h"
#include "common/base/units.h"
#include "common/config/variables.h"

namespace rcuda::config {
namespace {

// Returns the innermost subcommand on the command line, or the program itself.
const CLI::App& chosen(const CLI::App& program) {
  const auto subcommands = program.get_subcommands();
  return subcommands.empty() ? program : chosen(*subcommands.front());
}

// Returns the program's name with its subcommands on the command line: "rcuda-lease take".
std::string path_of(const CLI::App& program) {
  const auto subcommands = program.get_subcommands();
  return program.get_name() + (subcommands.empty() ? "" : " " + path_of(*subcommands.front()));
}

// Returns the long names ("--for") of the options of a program or subcommand.
std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* subcommand : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(subcommand->get_name());
  }
  return names;
}

std::string unknown_option_of(const CLI::App& program, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  return "unknown option " + name + did_you_mean(name, option_names(chosen(program)));
}

// Returns the error's text without a full stop at its end, because the caller appends to it.
std::string text_of(const CLI::ParseError& error, const CLI::App& program) {
  const bool is_extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  const std::vector<std::string> unknown = program.remaining(true);
  if (!unknown.empty() && (is_extra || dynamic_cast<const CLI::RequiredError*>(&error))) {
    const std::string& word = unknown.front();
    if (word.starts_with("-")) return unknown_option_of(program, word);
    if (is_extra) return "unexpected argument " + word;
    return "unknown subcommand " + word + did_you_mean(word, subcommand_names(program));
  }
  std::string text = error.what();
  while (text.ends_with('.')) text.pop_back();
  return text;
}

}  // namespace

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

Option& Option::within(double least, double most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Option& Option::as_seconds(std::chrono::nanoseconds least, std::chrono::nanoseconds most) {
  option_->transform(CLI::Validator(
      [least, most](std::string& value) {
        const auto time = parse_time(value);
        if (time && (*time < least || *time > most)) {
          return value + " is not a time from " + time_text(least) + " to " + time_text(most);
        }
        if (!time) return "\"" + value + "\" is not a time: write for example 2s or 500ms";
        value = std::to_string(std::chrono::duration<double>(*time).count());
        return std::string();
      },
      "TIME"));
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

std::vector<std::string> CommandLine::subcommands() const { return subcommand_names(*app_); }

void CommandLine::require_subcommand(int least, int most) {
  app_->require_subcommand(static_cast<size_t>(least), static_cast<size_t>(most));
}

void CommandLine::footer(const std::string& text) { app_->footer(text); }

void CommandLine::leave_rest() {
  app_->prefix_command();
  reports_variables_ = false;
}

std::vector<std::string> CommandLine::rest() const { return app_->remaining(); }

std::string CommandLine::unknown_option(const std::string& word) const {
  return unknown_option_of(*app_, word);
}

std::optional<int> CommandLine::parse(int argc, const char* const* argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app_->exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s: %s; %s --help lists the options\n", app_->get_name().c_str(),
                 text_of(error, *app_).c_str(), path_of(*app_).c_str());
    return kWrongUse;
  }
  if (reports_variables_) report_unknown_variables(app_->get_name());
  return std::nullopt;
}

void report_unknown_variables(const std::string& program) {
  for (const std::string& line : unknown_variables(environ)) {
    std::fprintf(stderr, "%s: %s\n", program.c_str(), line.c_str());
  }
}

bool CommandLine::is_chosen() const { return app_->parsed(); }

}  // namespace rcuda::config
