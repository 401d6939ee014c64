#include "server/daemon/audit.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"

namespace rcuda::server {
namespace {

TEST(AuditTest, TextsOfClientsStayInTheirLine) {
  EXPECT_EQ(json_text("plain"), "\"plain\"");
  EXPECT_EQ(json_text("a\"b\\c\nd\x7f"), "\"a\\\"b\\\\c\\u000ad\\u007f\"");
  EXPECT_EQ(json_text("Zürich, 東京, 🙂"), "\"Zürich, 東京, 🙂\"");
  EXPECT_EQ(json_text("cut \xe6\x9d"), "\"cut ??\"");
  EXPECT_EQ(json_text("\xff\xc3("), "\"??(\"");
  EXPECT_EQ(json_text(std::string_view("\0", 1)), "\"\\u0000\"");
}

TEST(AuditTest, ASessionAndARefusalAreALineEach) {
  const test::TempFolder folder;
  Audit audit;
  ASSERT_TRUE(audit.open(folder.file("audit")).ok());
  Identity identity;
  identity.uid = 1000;
  identity.user = "ada";
  identity.method = "token";
  identity.from = "10.0.0.7:51312";
  wire::ServerStatus::Session session{"mallory\n", "./train", "login1", 7, 8, "tcp", 12, {3, 0}};
  EndedSession ended{identity, session, {}, {}};
  audit.ended(ended, SessionTotals{5, 6, 7, "ended by the client"}, "ended by the client");
  ended.allowances = {{.of = "user ada", .device_memory = 9, .bandwidth = 8},
                      {.of = "group \"x\"", .host_memory = 7}};
  ended.limits = {std::chrono::seconds(60), std::chrono::milliseconds(1500), 0, 50};
  audit.ended(ended, {}, "signal Killed");
  audit.refused("10.0.0.8:1", {}, "no");
  const std::string text = folder.read("audit");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  for (
      const char* const part :
      {R"("event":"session","user":"ada","uid":1000,"method":"token","from":"10.0.0.7:51312")",
       R"("claims":{"user":"mallory\u000a","host":"login1","program":"./train","pid":7})",
       R"("devices":[3,0],"medium":"tcp","quota":[],"seconds":12,"commands":5,"copied_bytes":6,"link_bytes":7)",
       R"("quota":[{"of":"user ada","device_memory":9,"bandwidth":8},)"
       R"({"of":"group \"x\"","host_memory":7},)"
       R"({"session_seconds":60,"idle_seconds":2,"priorities":0,"sm_percent":50}],)",
       R"("seconds":12,"end":"signal Killed"})",
       R"("event":"refused","from":"10.0.0.8:1","why":"no"})"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(AuditTest, AFileThatCannotBeWrittenIsNamed) {
  Audit audit;
  const Status status = audit.open("/nowhere/audit");
  EXPECT_NE(status.message().find("/nowhere/audit"), std::string::npos);
  EXPECT_TRUE(audit.open("").ok());
  audit.refused("somebody", {}, "nothing is written");
}

TEST(AuditTest, WhatAWorkerSaysIsCheckedAndBounded) {
  const SessionTotals totals{1, 2, 3, std::string(5000, 'x')};
  const std::vector<std::byte> body = encode(totals);
  const Result<SessionTotals> decoded = decode_session_totals(body);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->link_bytes, 3u);
  EXPECT_EQ(decoded->outcome.size(), 1024u);
  for (size_t bytes = 0; bytes < 40; ++bytes) {
    const std::vector<std::byte> cut(body.begin(), body.begin() + static_cast<ptrdiff_t>(bytes));
    EXPECT_FALSE(decode_session_totals(cut).ok()) << bytes;
  }
}

}  // namespace
}  // namespace rcuda::server
