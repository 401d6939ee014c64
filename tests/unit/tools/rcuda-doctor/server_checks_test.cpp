#include "tools/rcuda-doctor/server_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rcuda::doctor {
namespace {

constexpr uint64_t kNow = 1'800'000'000'000;

wire::ServerStatus sample() {
  wire::ServerStatus status;
  status.version = "0.1.0";
  status.build = "1a2b3c4d5e6f";
  status.clock_ms = kNow + 400;
  status.user = "ada";
  status.method = "token";
  status.roles = "session";
  status.driver = "CUDA 13.0";
  status.nccl = "NCCL 2.28.9 from /usr/lib/libnccl.so.2 (auto)";
  status.devices = {{0, "H200", 1}, {1, "H200", 1}};
  return status;
}

struct Line {
  Verdict verdict;
  std::string what;
};

void expect_finding(const wire::ServerStatus& status, const Line& line) {
  bool found = false;
  for (const Finding& finding : describe_server(status, "0.1.0", kNow)) {
    found = found || (finding.verdict == line.verdict && finding.what == line.what);
    EXPECT_EQ(finding.verdict == Verdict::kGood, finding.remedy.empty()) << finding.what;
  }
  EXPECT_TRUE(found) << line.what;
}

TEST(ServerChecksTest, AGoodServerHasNoRemedies) {
  for (const char* what : {"user: the server knows this user as ada (token, role session)",
                           "build: the server runs rcuda 0.1.0 (build 1a2b3c4d5e6f)",
                           "clock: 400ms apart", "sessions: 2 devices (CUDA 13.0)",
                           "collectives: NCCL 2.28.9 from /usr/lib/libnccl.so.2 (auto)"}) {
    expect_finding(sample(), {Verdict::kGood, what});
  }
}

TEST(ServerChecksTest, OtherBuildsClocksAndDrainsAreNamed) {
  wire::ServerStatus status = sample();
  status.version = "0.2.0";
  expect_finding(status, {Verdict::kWarning,
                          "build: the server runs rcuda 0.2.0 (build 1a2b3c4d5e6f), this machine "
                          "has 0.1.0"});
  status.clock_ms = kNow + 90'500;
  expect_finding(status, {Verdict::kWarning,
                          "clock: the server's is 90.5s ahead; tokens, leases and MUNGE "
                          "credentials expire too early or too late"});
  status.clock_ms = kNow - 30'001;
  expect_finding(status, {Verdict::kWarning,
                          "clock: the server's is 30s behind; tokens, leases and MUNGE "
                          "credentials expire too early or too late"});
  status.draining = true;
  expect_finding(status, {Verdict::kWarning, "the server is draining: it takes no new sessions"});
}

}  // namespace
}  // namespace rcuda::doctor
