// The device, port and GID that a Link chooses, and its log lines about them. Runs in the rig
// (tests/rdma/run): rxe0 has 10.77.0.1, rxe1 has 10.77.0.2 and, as a second GID, 10.77.0.3.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/log.h"
#include "tests/support/link_pair.h"

namespace rcuda::test {
namespace {

class DeviceChoice : public testing::Test {
 protected:
  void SetUp() override {
    log_ = ::memfd_create("log", MFD_CLOEXEC);
    set_log_descriptor(log_);
    set_log_level(LogLevel::kInfo);
  }
  void TearDown() override {
    for (const char* name : {"RCUDA_VERBS_DEVICE", "RCUDA_VERBS_GID"}) ::unsetenv(name);
    set_log_level(LogLevel::kWarn);
    set_log_descriptor(STDERR_FILENO);
    ::close(log_);
  }

  // Connects the client's 10.77.0.2 to 10.77.0.1 and returns the log of both ends.
  std::string connect() {
    const Result<LinkPair> pair = make_link_pair(medium_named("verbs"));
    EXPECT_TRUE(pair.ok()) << pair.status().message();
    const std::string text = log();
    for (transport::Link* link : {pair->client.get(), pair->server.get()}) {
      EXPECT_GE(count(text, "verbs: " + link->adapter() + " port 1"), 1u) << text;
    }
    return text;
  }
  std::string refusal() {
    const Result<LinkPair> pair = make_link_pair(medium_named("verbs"));
    EXPECT_FALSE(pair.ok()) << log();
    return pair.ok() ? std::string() : pair.status().context();
  }
  std::string log() const {
    std::string text(static_cast<size_t>(::lseek(log_, 0, SEEK_END)), '\0');
    const ssize_t got = ::pread(log_, text.data(), text.size(), 0);
    text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return text;
  }
  static size_t count(const std::string& text, const std::string& part) {
    size_t found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
      ++found;
    }
    return found;
  }

  int log_ = -1;
};

TEST_F(DeviceChoice, TheRouteToThePeerDecides) {
  const std::string text = connect();
  EXPECT_EQ(count(text, "verbs: "), 2u) << text;  // one line on each side
  const std::string because =
      ", RoCE v2, MTU 4096, because the control connection runs over its "
      "address";
  EXPECT_EQ(count(text, "verbs: rxe0 port 1, GID 1 (10.77.0.1)" + because), 1u) << text;
  EXPECT_EQ(count(text, "verbs: rxe1 port 1, GID 1 (10.77.0.2)" + because), 1u) << text;
}

TEST_F(DeviceChoice, ADeviceCanBeNamed) {
  ::setenv("RCUDA_VERBS_DEVICE", "rxe0", 1);
  const std::string text = connect();
  EXPECT_EQ(count(text, "verbs: rxe0 port 1, GID 1 (10.77.0.1)"), 2u) << text;
  EXPECT_EQ(count(text, "because RCUDA_VERBS_DEVICE says so"), 2u) << text;
}

TEST_F(DeviceChoice, AGidCanBeNamed) {
  ::setenv("RCUDA_VERBS_DEVICE", "rxe1", 1);
  ::setenv("RCUDA_VERBS_GID", "2", 1);
  const std::string text = connect();
  EXPECT_EQ(count(text, "verbs: rxe1 port 1, GID 2 (10.77.0.3)"), 2u) << text;
  EXPECT_EQ(count(text, "because RCUDA_VERBS_DEVICE and RCUDA_VERBS_GID say so"), 2u) << text;
}

TEST_F(DeviceChoice, AGidOfTheDeviceThatTheRouteChose) {
  ::setenv("RCUDA_VERBS_GID", "1", 1);
  const std::string text = connect();
  EXPECT_EQ(count(text, "because RCUDA_VERBS_GID says so"), 2u) << text;
  EXPECT_EQ(count(text, "verbs: rxe1 port 1, GID 1 (10.77.0.2)"), 1u) << text;
}

TEST_F(DeviceChoice, AWrongDeviceIsNamedWithThoseThatExist) {
  ::setenv("RCUDA_VERBS_DEVICE", "mlx5_7", 1);
  const std::string why = refusal();
  EXPECT_NE(why.find("RCUDA_VERBS_DEVICE=mlx5_7: there is no such RDMA device"), std::string::npos)
      << why;
  EXPECT_NE(why.find("rxe0"), std::string::npos) << why;
  EXPECT_NE(why.find("rxe1"), std::string::npos) << why;
}

TEST_F(DeviceChoice, AWrongGidIsNamedWithThoseThatExist) {
  ::setenv("RCUDA_VERBS_DEVICE", "rxe1", 1);
  for (const char* wrong : {"7", "-1", "1x", "first", "01"}) {
    ::setenv("RCUDA_VERBS_GID", wrong, 1);
    const std::string why = refusal();
    EXPECT_NE(why.find(std::string("RCUDA_VERBS_GID=") + wrong + ": "), std::string::npos) << why;
    EXPECT_NE(why.find("1 (10.77.0.2), 2 (10.77.0.3)"), std::string::npos) << why;
  }
}

}  // namespace
}  // namespace rcuda::test
