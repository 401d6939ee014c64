#include "server/quota/rules.h"

#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"

namespace rcuda::server {
namespace {

using namespace std::chrono_literals;

constexpr uid_t kAda = 1000, kBob = 1001;
constexpr gid_t kStudents = 100, kStaff = 101;

Result<uint32_t> look_up(const std::map<std::string, uint32_t>& names, const std::string& name) {
  const auto found = names.find(name);
  if (found != names.end()) return found->second;
  return Status(Code::kNotFound, "this machine does not know \"" + name + "\"");
}

Result<Rules> read(const std::string& text) {
  const test::TempFolder folder;
  const std::string path = folder.write("server.toml", text);
  return Rules::read(path, {[](const std::string& name) {
                              return look_up({{"ada", kAda}, {"1000", kAda}, {"bob", kBob}}, name);
                            },
                            [](const std::string& name) {
                              return look_up({{"students", kStudents}, {"staff", kStaff}}, name);
                            }});
}

Rules good(const std::string& text) {
  Result<Rules> rules = read(text);
  EXPECT_TRUE(rules.ok()) << rules.status().message();
  return rules.ok() ? std::move(rules).value() : Rules();
}

TEST(RulesTest, LimitsAreTheSameWhereverTheyAreInTheFile) {
  const Rules rules = good("[limits.user]\nsessions = 2\n[limits.users.ada]\ndevices = 1\n");
  EXPECT_TRUE(rules.same_limits(
      good("# two\n[limits.users.ada]\ndevices = 1\n\n[limits.user]\nsessions = 2\n")));
  EXPECT_FALSE(rules.same_limits(Rules()));
  EXPECT_FALSE(rules.same_limits(good("[limits.user]\nsessions = 2\n")));
  EXPECT_FALSE(
      rules.same_limits(good("[limits.user]\nsessions = 3\n[limits.users.ada]\ndevices = 1\n")));
  EXPECT_FALSE(
      rules.same_limits(good("[limits.user]\nsessions = 2\n[limits.users.bob]\ndevices = 1\n")));
}

TEST(RulesTest, WithoutRulesNothingIsLimited) {
  for (const Rules& rules : {Rules(), good(""), good("port = 1\n[limits]\n[limits.user]\n")}) {
    const UserRules all = rules.of(kAda, "ada", {kStudents});
    EXPECT_EQ(all.session.allowance.device_memory, 0u);
    EXPECT_EQ(all.session.limits.idle_time, 0ns);
    EXPECT_FALSE(all.session.limits.priorities);
    EXPECT_EQ(all.user.sessions.most, 0u);
    EXPECT_TRUE(all.groups.empty());
    EXPECT_EQ(rules.text(), "");
    EXPECT_FALSE(rules.limits_groups());
  }
}

TEST(RulesTest, EveryKeyIsRead) {
  const Rules rules = good(R"(
    [limits.session]
    device_memory = "40G"
    host_memory = "8G"
    bandwidth = 1073741824
    devices = 2
    session_time = "12h"
    idle_time = "30m"
    priorities = 0
    sm_percent = 50
    priority = 7
    [limits.user]
    sessions = 8
    devices = "4"
    device_memory = "80G"
    host_memory = "16G"
    bandwidth = "10G"
  )");
  const UserRules all = rules.of(std::nullopt, "somebody", {});
  EXPECT_EQ(all.session.allowance.of, "each session");
  EXPECT_EQ(all.session.allowance.device_memory, 40ull << 30);
  EXPECT_EQ(all.session.allowance.host_memory, 8ull << 30);
  EXPECT_EQ(all.session.allowance.bandwidth, 1ull << 30);
  EXPECT_EQ(all.session.devices.most, 2u);
  EXPECT_EQ(all.session.limits.session_time, 12h);
  EXPECT_EQ(all.session.limits.idle_time, 30min);
  EXPECT_EQ(all.session.limits.priorities, 0u);
  EXPECT_EQ(all.session.limits.sm_percent, 50u);
  EXPECT_EQ(all.session.limits.priority, 7u);
  EXPECT_EQ(all.user.allowance.of, "user somebody");
  EXPECT_EQ(all.user.sessions.most, 8u);
  EXPECT_EQ(all.user.devices.most, 4u);
  EXPECT_EQ(all.user.allowance.device_memory, 80ull << 30);
  EXPECT_EQ(all.user.allowance.host_memory, 16ull << 30);
  EXPECT_EQ(all.user.allowance.bandwidth, 10ull << 30);
  EXPECT_NE(all.user.sessions.rule.find("sessions of [limits.user] in "), std::string::npos);
  EXPECT_NE(all.user.sessions.rule.find("server.toml:13"), std::string::npos)
      << all.user.sessions.rule;
  EXPECT_NE(rules.text().find("idle_time = 30m  ([limits.session] in "), std::string::npos)
      << rules.text();
}

TEST(RulesTest, TheUsersOwnTableOverridesTheGroupsAndTheseTheGeneralOne) {
  const Rules rules = good(R"(
    [limits.session]
    device_memory = "1G"
    idle_time = "1m"
    sm_percent = 10
    priorities = 1
    [limits.user]
    sessions = 1
    devices = 1
    [limits.groups.students.session]
    idle_time = "2m"
    sm_percent = 20
    priorities = 2
    [limits.groups.staff.session]
    idle_time = "3m"
    device_memory = "3G"
    [limits.groups.students]
    sessions = 20
    [limits.users.ada.session]
    priorities = 4
    [limits.users.ada]
    sessions = 0
  )");
  const UserRules ada = rules.of(kAda, "ada", {kStaff, kStudents});
  EXPECT_EQ(ada.session.limits.priorities, 4u);
  EXPECT_EQ(ada.session.limits.sm_percent, 20u);
  EXPECT_EQ(ada.session.limits.idle_time, 2min) << "the first group of the file counts";
  EXPECT_EQ(ada.session.allowance.device_memory, 3ull << 30);
  EXPECT_EQ(ada.user.sessions.most, 0u);
  EXPECT_EQ(ada.user.devices.most, 1u);
  ASSERT_EQ(ada.groups.size(), 1u) << "staff has no limits of all its sessions";
  EXPECT_EQ(ada.groups.at(kStudents).sessions.most, 20u);
  EXPECT_EQ(ada.groups.at(kStudents).allowance.of, "group students");

  EXPECT_TRUE(rules.limits_groups());
  const UserRules bob = rules.of(kBob, "bob", {kStaff});
  EXPECT_EQ(bob.session.limits.priorities, 1u);
  EXPECT_EQ(bob.session.limits.idle_time, 3min);
  EXPECT_EQ(bob.user.sessions.most, 1u);
  EXPECT_TRUE(bob.groups.empty());
}

TEST(RulesTest, ABadFileIsRefusedWithThePlaceAndWhatIsAccepted) {
  struct Case {
    const char* text;
    std::vector<const char*> says;
  };
  const Case cases[] = {
      {"\n[limits.user]\nsesions = 8", {"server.toml:3: ", "'sesions'", "sessions, devices"}},
      {"[limits.user]\nidle_time = \"1m\"", {":2: ", "'idle_time'", "below [limits.session]"}},
      {"[limits.users.ada]\npriority = 1", {":2: ", "below [limits.users.ada.session]"}},
      {"[limits.users.ada.session]\nsessions = 1", {":2: ", "below [limits.users.ada]"}},
      {"[limits.session]\nsessions = 1", {":2: ", "'sessions'", "below [limits.user]"}},
      {"[limits.session]\nsesions = 1", {":2: ", "'sesions'", "sm_percent"}},
      {"[limits.user]\ndevice_memory = true", {":2: ", "device_memory = true", "such as \"40G\""}},
      {"[limits.user]\ndevice_memory = [1]", {":2: ", "such as \"40G\""}},
      {"[limits.user]\ndevice_memory = 1.5", {":2: ", "at least 1M"}},
      {"[limits.user]\nsessions = 1.5", {":2: ", "a whole number up to 100000"}},
      {"[limits.user]\ndevice_memory = \"40\"", {":2: ", "at least 1M"}},
      {"[limits.user]\ndevice_memory = \"lots\"", {":2: ", "such as \"40G\""}},
      {"[limits.user]\nbandwidth = 10", {":2: ", "at least 64K"}},
      {"[limits.user]\nsessions = -1", {":2: ", "a whole number up to 100000"}},
      {"[limits.user]\nsessions = \"\"", {":2: ", "a whole number up to 100000"}},
      {"[limits.session]\nidle_time = \"30 parsecs\"", {":2: ", "such as \"30m\""}},
      {"[limits.session]\nidle_time = \"5300w\"", {":2: ", "up to 100 years"}},
      {"[limits.session]\nsm_percent = 101", {":2: ", "up to 100"}},
      {"[limits.session]\npriority = 1001", {":2: ", "up to 1000"}},
      {"[limits]\nsessions = 1", {":2: ", "'sessions'", "[limits.user]"}},
      {"[limits.users]\nada = 1", {":2: ", "'ada'", "[limits.users.NAME]"}},
      {"[limits.sesion]", {":1: ", "[limits.sesion]", "[limits.session]"}},
      {"[limits.users.ada.sesion]", {":1: ", "[limits.users.ada.sesion]"}},
      {"[limits.users.ada.session.x]", {"[limits.users.ada.session.x]"}},
      {"[limits.users.eve]\nsessions = 1", {":1: ", "[limits.users.eve]", "does not know \"eve\""}},
      {"[limits.groups.ada]", {":1: ", "[limits.groups.ada]", "does not know \"ada\""}},
      {"[limits.users.ada]\n[limits.users.1000]", {":2: ", "also in [limits.users.ada]"}},
      {"[[limits.user]]\nsessions = 1", {":1: ", "limits.user"}},
      {"[limits.user\n", {":1: "}},
  };
  for (const Case& c : cases) {
    const Result<Rules> rules = read(c.text);
    ASSERT_FALSE(rules.ok()) << c.text;
    for (const char* part : c.says) {
      EXPECT_NE(rules.status().context().find(part), std::string::npos)
          << c.text << "\n"
          << rules.status().context() << "\nlacks " << part;
    }
  }
}

}  // namespace
}  // namespace rcuda::server
