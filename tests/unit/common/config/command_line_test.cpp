#include "common/config/command_line.h"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/variable.h"

namespace rcuda::config {
namespace {

// The text that a program prints about its arguments, and its exit status; -1: it continues.
struct Said {
  int status = -1;
  std::string text;
};

Said say(std::vector<const char*> arguments) {
  CommandLine line("tool", "A tool.", "tool 1");
  std::string text;
  uint64_t bytes = 0;
  bool json = false;
  line.flag("--json", &json, "");
  CommandLine& take = line.subcommand("take", "takes");
  take.option("--devices", &text, "");
  take.option("--size", &bytes, "").as_bytes();
  arguments.insert(arguments.begin(), "/usr/bin/tool");
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  const auto status = line.parse(static_cast<int>(arguments.size()), arguments.data());
  testing::internal::GetCapturedStdout();
  return {status.value_or(-1), testing::internal::GetCapturedStderr()};
}

TEST(CommandLineTest, ErrorsNameTheProgramAndTheNearestOption) {
  struct Case {
    std::vector<const char*> arguments;
    const char* said;
  };
  for (const Case& c :
       {Case{{"--jsn"}, "tool: unknown option --jsn; did you mean --json?; tool --help"},
        Case{{"--colour"}, "tool: unknown option --colour; tool --help lists the options\n"},
        Case{{"take", "--device=1"},
             "tool: unknown option --device; did you mean --devices?; tool take --help"},
        Case{{"take", "more"}, "tool: unexpected argument more; tool take --help"},
        Case{{"take", "--size", "12parsecs"}, "write for example 64M or 1.5G; tool take --help"},
        Case{{"take", "--devices"}, "tool: --devices"}}) {
    const Said said = say(c.arguments);
    EXPECT_EQ(said.status, CommandLine::kWrongUse) << c.said;
    EXPECT_NE(said.text.find(c.said), std::string::npos) << said.text;
  }
}

TEST(CommandLineTest, AMisspeltSubcommandIsNamed) {
  const std::pair<std::vector<const char*>, const char*> cases[] = {
      {{"tool", "tkae", "x"}, "tool: unknown subcommand tkae; did you mean take?; tool --help"},
      {{"tool", "--vesrion"}, "tool: unknown option --vesrion; did you mean --version?"},
      {{"tool"}, "tool: A subcommand is required; tool --help"}};
  for (const auto& [arguments, said] : cases) {
    CommandLine line("tool", "A tool.", "tool 1");
    line.subcommand("take", "takes");
    line.require_subcommand(1, 1);
    testing::internal::CaptureStderr();
    EXPECT_EQ(line.parse(static_cast<int>(arguments.size()), arguments.data()),
              CommandLine::kWrongUse);
    const std::string text = testing::internal::GetCapturedStderr();
    EXPECT_NE(text.find(said), std::string::npos) << text;
  }
}

TEST(CommandLineTest, HelpAndVersionAreNoErrors) {
  for (const char* option : {"--help", "--version"}) {
    const Said said = say({option});
    EXPECT_EQ(said.status, 0);
    EXPECT_EQ(said.text, "");
  }
  EXPECT_EQ(say({"take", "--size", "1.5G"}).status, -1);
}

TEST(CommandLineTest, ATimeBecomesSeconds) {
  const std::pair<const char*, double> cases[] = {{"2", 2},       {"0.5", 0.5}, {"2s", 2},
                                                  {"500ms", 0.5}, {"5m", 300},  {"1.5", 1.5}};
  for (const auto& [text, seconds] : cases) {
    CommandLine line("tool", "A tool.");
    double read = 0;
    line.option("--every", &read, "")
        .as_seconds(std::chrono::milliseconds(100), std::chrono::hours(1));
    const char* const arguments[] = {"tool", "--every", text};
    EXPECT_EQ(line.parse(3, arguments), std::nullopt) << text;
    EXPECT_DOUBLE_EQ(read, seconds) << text;
  }
  const std::pair<const char*, const char*> refused[] = {
      {"2h", "tool: --every: 2h is not a time from 100ms to 1h; "},
      {"50ms", "tool: --every: 50ms is not a time from 100ms to 1h; "},
      {"soon", "tool: --every: \"soon\" is not a time: write for example 2s or 500ms; "},
      {"1x", "tool: --every: \"1x\" is not a time: write for example 2s or 500ms; "}};
  for (const auto& [text, said] : refused) {
    CommandLine line("tool", "A tool.");
    double read = 0;
    line.option("--every", &read, "")
        .as_seconds(std::chrono::milliseconds(100), std::chrono::hours(1));
    const char* const arguments[] = {"tool", "--every", text};
    testing::internal::CaptureStderr();
    EXPECT_EQ(line.parse(3, arguments), CommandLine::kWrongUse) << text;
    EXPECT_TRUE(testing::internal::GetCapturedStderr().starts_with(said)) << text;
  }
}

TEST(CommandLineTest, AMisspeltVariableIsReported) {
  const test::Variable device("RCUDA_DEVICE", "node1:0");
  const Said said = say({"take"});
  EXPECT_EQ(said.status, -1);
  EXPECT_EQ(said.text,
            "tool: RCUDA_DEVICE is not a variable of rcuda; did you mean RCUDA_DEVICES?\n");
}

}  // namespace
}  // namespace rcuda::config
