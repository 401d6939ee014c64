#include "server/daemon/admission/audit.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"

namespace rcuda::server {
namespace {

Identity root_by_ticket() {
  Identity identity;
  identity.uid = 0;
  identity.user = "root";
  identity.method = "ticket";
  identity.from = "10.0.0.7:51312";
  return identity;
}

TEST(AuditTest, ASessionsBeginAndEndAndARefusalAreALineEach) {
  const test::TempFolder folder;
  Audit audit;
  ASSERT_TRUE(audit.open(folder.file("audit")).ok());
  Identity identity;
  identity.uid = 1000;
  identity.user = "ada";
  identity.method = "token";
  identity.from = "10.0.0.7:51312";
  wire::ServerStatus::Session session{"mallory\n", "./train", "login1", 7, 8, "tcp", 12, {3, 0}};
  AuditedSession ended{identity, session, {}, {}};
  audit.began(ended);
  audit.ended(ended, SessionTotals{{{5, 1, 2, 0, 4, 6, 7}}, "ended by the client"},
              "ended by the client");
  ended.allowances = {{.of = "user ada", .device_memory = 9, .bandwidth = 8},
                      {.of = "group \"x\"", .host_memory = 7}};
  ended.limits = {std::chrono::seconds(60), std::chrono::milliseconds(1500), 0, 50};
  ended.session.work = {{9, 0, 8}};  // in its WorkPage
  audit.ended(ended, {}, "signal Killed");
  audit.refused("10.0.0.8:1", {}, "no");
  const std::string text = folder.read("audit");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  for (
      const char* const part :
      {R"("event":"begin","user":"ada","uid":1000,"method":"token","from":"10.0.0.7:51312",)"
       R"("claims":{"user":"mallory\u000a","host":"login1","program":"./train","pid":7},)"
       R"("worker":8,"devices":[3,0],"medium":"tcp","quota":[]})",
       R"("event":"session","user":"ada","uid":1000,"method":"token","from":"10.0.0.7:51312")",
       R"("claims":{"user":"mallory\u000a","host":"login1","program":"./train","pid":7},"worker":8,)"
       R"("devices":[3,0],"medium":"tcp","quota":[],"seconds":12,)"
       R"("commands":5,"failed_commands":1,"launches":2,"graph_launches":0,"copies":4,)"
       R"("bytes_to_device":6,"bytes_to_host":7,"bytes_on_server":0,"bytes_to_server":0,)"
       R"("bytes_from_server":0,"peak_memory":0,"end":"ended by the client"})",
       R"("quota":[{"of":"user ada","device_memory":9,"bandwidth":8},)"
       R"({"of":"group \"x\"","host_memory":7},)"
       R"({"session_seconds":60,"idle_seconds":2,"priorities":0,"sm_percent":50}],)",
       R"("seconds":12,"commands":9,"failed_commands":0,"launches":8,"graph_launches":0,"copies":0,)"
       R"("bytes_to_device":0,"bytes_to_host":0,"bytes_on_server":0,"bytes_to_server":0,)"
       R"("bytes_from_server":0,"peak_memory":0,"end":"signal Killed"})",
       R"("event":"refused","from":"10.0.0.8:1","why":"no"})"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(AuditTest, WhatOperatorsDoIsALineEach) {
  const test::TempFolder folder;
  Audit audit;
  ASSERT_TRUE(audit.open(folder.file("audit")).ok());
  Identity identity = root_by_ticket();
  audit.control("end", identity, 4711);
  audit.control("drain", {}, {});
  const std::string text = folder.read("audit");
  for (const char* const part :
       {R"("event":"control","what":"end","worker":4711,"user":"root","uid":0,"method":"ticket",)"
        R"("from":"10.0.0.7:51312"})",
        R"("event":"control","what":"drain"})"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(AuditTest, ALeaseIsInTheLinesOfItsChangesAndOfItsSessions) {
  const test::TempFolder folder;
  Audit audit;
  ASSERT_TRUE(audit.open(folder.file("audit")).ok());
  Identity identity = root_by_ticket();
  Lease lease;
  lease.id = "1a2b3c4d";
  lease.secret.fill(0xab);
  lease.job = "slurm 4711";
  lease.user = "ada";
  lease.devices = {0, 3};
  lease.until = std::chrono::sys_seconds(std::chrono::seconds(1'800'000'000));
  audit.lease("taken", lease, identity);
  audit.lease("expired", lease, {});
  identity.lease = lease.id;
  identity.job = lease.job;
  audit.ended({identity, {}, {}, {}}, {}, "ended by the client");
  const std::string text = folder.read("audit");
  for (const char* const part :
       {R"("event":"lease","what":"taken","lease":"1a2b3c4d","job":"slurm 4711","for":"ada",)"
        R"("devices":[0,3],"exclusive":true,"until":"2027-01-15T08:00:00Z","user":"root","uid":0,)"
        R"("method":"ticket","from":"10.0.0.7:51312"})",
        R"("what":"expired","lease":"1a2b3c4d","job":"slurm 4711","for":"ada","devices":[0,3],)"
        R"("exclusive":true,"until":"2027-01-15T08:00:00Z"})",
        R"("event":"session","user":"root","uid":0,"method":"ticket","lease":"1a2b3c4d",)"
        R"("job":"slurm 4711","from":"10.0.0.7:51312")"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(text.find("abab"), std::string::npos) << "a secret";
}

TEST(AuditTest, AFileThatCannotBeWrittenIsNamed) {
  Audit audit;
  const Status status = audit.open("/nowhere/audit");
  EXPECT_NE(status.message().find("/nowhere/audit"), std::string::npos);
  EXPECT_TRUE(audit.open("").ok());
  audit.refused("somebody", {}, "nothing is written");
  // If the new file cannot be opened, the audit keeps the file that is open.
  const test::TempFolder folder;
  ASSERT_TRUE(audit.open(folder.file("audit")).ok());
  EXPECT_FALSE(audit.open("/nowhere/audit").ok());
  audit.refused("somebody", {}, "first");
  ASSERT_TRUE(audit.open("").ok());
  audit.refused("somebody", {}, "second");
  EXPECT_NE(folder.read("audit").find("first"), std::string::npos);
  EXPECT_EQ(folder.read("audit").find("second"), std::string::npos);
}

TEST(AuditTest, WhatAWorkerSaysIsCheckedAndBounded) {
  const SessionTotals totals{{{1, 2, 3}}, std::string(5000, 'x')};
  const std::vector<std::byte> bytes = encode_message(ToDaemon(totals));
  const Result<ToDaemon> message = decode_message<ToDaemon>(bytes);
  ASSERT_TRUE(message.ok());
  const auto& decoded = std::get<SessionTotals>(*message);
  EXPECT_EQ(decoded.work.counts, totals.work.counts);
  EXPECT_EQ(decoded.outcome.size(), 1024u);
  for (size_t count = 0; count < 40; ++count) {
    EXPECT_FALSE(decode_message<ToDaemon>(std::span(bytes).first(count)).ok()) << count;
  }
}

}  // namespace
}  // namespace rcuda::server
