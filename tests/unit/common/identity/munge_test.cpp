// Credentials of the real munged, started by these tests.
#include "common/identity/munge.h"

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <munge.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/unique_fd.h"
#include "common/identity/munge_library.h"
#include "tests/support/munge_daemon.h"

namespace rcuda::identity::munge {
namespace {

using test::MungeDaemon;
using testing::HasSubstr;

// The loader's declarations are those of libmunge-dev.
static_assert(static_cast<int>(Option::kTtl) == MUNGE_OPT_TTL);
static_assert(static_cast<int>(Option::kSocket) == MUNGE_OPT_SOCKET);
static_assert(static_cast<int>(Option::kUidRestriction) == MUNGE_OPT_UID_RESTRICTION);
static_assert(static_cast<int>(Error::kSuccess) == EMUNGE_SUCCESS);
static_assert(static_cast<int>(Error::kNoMemory) == EMUNGE_NO_MEMORY);
static_assert(static_cast<int>(Error::kSocket) == EMUNGE_SOCKET);
static_assert(static_cast<int>(Error::kTimeout) == EMUNGE_TIMEOUT);
static_assert(static_cast<int>(Error::kBadCredential) == EMUNGE_BAD_CRED);
static_assert(static_cast<int>(Error::kBadVersion) == EMUNGE_BAD_VERSION);
static_assert(static_cast<int>(Error::kBadCipher) == EMUNGE_BAD_CIPHER);
static_assert(static_cast<int>(Error::kBadMac) == EMUNGE_BAD_MAC);
static_assert(static_cast<int>(Error::kBadZip) == EMUNGE_BAD_ZIP);
static_assert(static_cast<int>(Error::kBadRealm) == EMUNGE_BAD_REALM);
static_assert(static_cast<int>(Error::kInvalid) == EMUNGE_CRED_INVALID);
static_assert(static_cast<int>(Error::kExpired) == EMUNGE_CRED_EXPIRED);
static_assert(static_cast<int>(Error::kRewound) == EMUNGE_CRED_REWOUND);
static_assert(static_cast<int>(Error::kReplayed) == EMUNGE_CRED_REPLAYED);
static_assert(static_cast<int>(Error::kUnauthorized) == EMUNGE_CRED_UNAUTHORIZED);
static_assert(sizeof(Error) == sizeof(munge_err_t));
static_assert(kAnyUid == static_cast<uid_t>(MUNGE_UID_ANY));

constexpr uid_t kNobody = 65534;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string text_of(const Credential& credential) {
  return {reinterpret_cast<const char*>(credential.payload.data()), credential.payload.size()};
}

// Runs `action` in a process of another user, and returns its result.
std::string as_user(uid_t user, const std::function<std::string()>& action) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::string text = "cannot become another user";
    if (::setgroups(0, nullptr) == 0 && ::setresgid(user, user, user) == 0 &&
        ::setresuid(user, user, user) == 0) {
      text = action();
    }
    (void)!::write(ends[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char part[4096];
  for (ssize_t count; (count = ::read(ends[0], part, sizeof part)) > 0;) text.append(part, count);
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return text;
}

class MungeTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(daemon_.wait_until_ready()) << daemon_.log();
    settings_.socket = daemon_.socket();
  }

  std::string encoded(const std::string& payload = "nonce", std::optional<uid_t> only_for = {}) {
    const Result<std::string> credential = encode(bytes_of(payload), only_for, settings_);
    EXPECT_TRUE(credential.ok()) << credential.status().message();
    return credential.ok() ? *credential : "";
  }

  // Expects that a munged with these settings refuses the credential for this reason.
  static void expect_refused(const std::string& credential, const Settings& settings,
                             const char* reason) {
    const Result<Credential> decoded = decode(credential, settings);
    ASSERT_FALSE(decoded.ok());
    EXPECT_EQ(decoded.status().code(), Code::kDenied) << decoded.status().message();
    EXPECT_THAT(decoded.status().context(), HasSubstr(reason));
  }

  MungeDaemon daemon_{'k'};
  Settings settings_;
};

TEST_F(MungeTest, SaysWhoMadeACredential) {
  EXPECT_TRUE(available(settings_));
  for (const std::string& payload :
       {std::string("nonce"), std::string(), std::string("\0\n\xff", 3), std::string(4096, 'x')}) {
    const Result<Credential> decoded = decode(encoded(payload), settings_);
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(decoded->uid, ::geteuid());
    EXPECT_EQ(decoded->gid, ::getegid());
    EXPECT_EQ(text_of(*decoded), payload);
  }
}

TEST_F(MungeTest, SaysOfAnotherUserWhoItIs) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const std::string credential = as_user(kNobody, [&] { return encoded("from nobody"); });
  const Result<Credential> decoded = decode(credential, settings_);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded->uid, kNobody);
  EXPECT_EQ(decoded->gid, kNobody);
  EXPECT_EQ(text_of(*decoded), "from nobody");
}

TEST_F(MungeTest, ACredentialServesOnce) {
  const std::string credential = encoded();
  EXPECT_TRUE(decode(credential, settings_).ok());
  expect_refused(credential, settings_, "was used before");
  EXPECT_TRUE(decode(encoded(), settings_).ok());
}

TEST_F(MungeTest, ACredentialForAUserIsOnlyForThatUser) {
  EXPECT_TRUE(decode(encoded("nonce", ::geteuid()), settings_).ok());
  const uid_t other = ::geteuid() == kNobody ? 1 : kNobody;
  const std::string credential = encoded("nonce", other);
  expect_refused(credential, settings_, "made the credential for another user than this process's");
  if (::geteuid() != 0) return;
  // The refused decoding has not consumed the credential.
  EXPECT_EQ(as_user(other,
                    [&] {
                      const Result<Credential> decoded = decode(credential, settings_);
                      return decoded.ok() ? text_of(*decoded) : decoded.status().message();
                    }),
            "nonce");
}

TEST_F(MungeTest, MachinesWithDifferentKeysRefuseEachOther) {
  MungeDaemon same('k'), other('o');
  ASSERT_TRUE(same.wait_until_ready()) << same.log();
  ASSERT_TRUE(other.wait_until_ready()) << other.log();
  EXPECT_TRUE(decode(encoded(), {.socket = same.socket()}).ok());
  expect_refused(encoded(), {.socket = other.socket()}, "/etc/munge/munge.key");
}

TEST_F(MungeTest, MachinesWhoseClocksDifferRefuseEachOther) {
  MungeDaemon ahead('k', RCUDA_TEST_CLOCK_AHEAD);
  ASSERT_TRUE(ahead.wait_until_ready()) << ahead.log();
  const Settings there{.socket = ahead.socket()};
  expect_refused(encoded(), there, "has expired");
  const Result<std::string> of_tomorrow = encode(bytes_of("nonce"), std::nullopt, there);
  ASSERT_TRUE(of_tomorrow.ok()) << of_tomorrow.status().message();
  expect_refused(*of_tomorrow, settings_, "made in the future");
  expect_refused(*of_tomorrow, settings_, "NTP");
}

TEST_F(MungeTest, ACredentialThatWasChangedIsRefused) {
  const std::string credential = encoded();
  const size_t start = std::strlen("MUNGE:");
  size_t different = 0;
  for (size_t at = start; at + 1 < credential.size(); at += 7) {
    std::string changed = credential;
    changed[at] = changed[at] == 'A' ? 'B' : 'A';
    const Result<Credential> decoded = decode(changed, settings_);
    // The last digit of base64 may have unused bits; a change of these has no effect.
    if (decoded.ok()) continue;
    ++different;
    EXPECT_EQ(decoded.status().code(), Code::kDenied) << decoded.status().message();
  }
  EXPECT_GT(different, 5u);
}

TEST_F(MungeTest, WhatIsNoCredentialNeverReachesMunged) {
  // No munged listens there, so a text that decode() passes on would return kUnavailable.
  const Settings nowhere{.socket = daemon_.socket() + "-none"};
  const std::string credential = encoded();
  for (const std::string& text :
       {std::string(), std::string("MUNGE:"), std::string("MUNGE::"), std::string("text"),
        credential + " ", " " + credential, credential + "\n", credential.substr(1),
        credential.substr(0, credential.size() - 1), credential + std::string(1, '\0'),
        "MUNGE:" + std::string(1, '\0') + ":", std::string("MUNGE:AB%s%n:"),
        "MUNGE:" + std::string(kMostCredentialBytes, 'A') + ":"}) {
    EXPECT_EQ(decode(text, nowhere).status().code(), Code::kProtocol) << text;
  }
  EXPECT_EQ(decode(credential, nowhere).status().code(), Code::kUnavailable);
  // These texts look like credentials, so decode() passes them on and munged refuses them.
  for (const char* text : {"MUNGE:AAAA:", "MUNGE:====:", "MUNGE:A:", "MUNGE:AwQAAA==:"}) {
    EXPECT_EQ(decode(text, settings_).status().code(), Code::kDenied) << text;
  }
}

TEST_F(MungeTest, WhatCannotBeEncodedIsRefused) {
  const std::string large(kMostPayloadBytes + 1, 'x');
  EXPECT_EQ(encode(bytes_of(large), std::nullopt, settings_).status().code(),
            Code::kInvalidArgument);
  // MUNGE's value for "every user".
  EXPECT_EQ(encode(bytes_of("nonce"), static_cast<uid_t>(-1), settings_).status().code(),
            Code::kInvalidArgument);
}

TEST_F(MungeTest, SaysThatMungedDoesNotRun) {
  const std::string credential = encoded();
  const auto expect_nobody_there = [](const Status& status, const Settings& there) {
    EXPECT_EQ(status.code(), Code::kUnavailable) << status.message();
    EXPECT_THAT(status.context(), HasSubstr(there.socket));
    EXPECT_THAT(status.context(), HasSubstr("systemctl start munge"));
  };
  for (const int signal : {SIGKILL, SIGTERM}) {  // after SIGKILL the socket's file remains
    MungeDaemon stopped('k');
    ASSERT_TRUE(stopped.wait_until_ready()) << stopped.log();
    const Settings there{.socket = stopped.socket()};
    EXPECT_TRUE(available(there));
    stopped.stop(signal);
    EXPECT_EQ(available(there), signal == SIGKILL);
    expect_nobody_there(decode(credential, there).status(), there);
    expect_nobody_there(encode(bytes_of("nonce"), std::nullopt, there).status(), there);
  }
  EXPECT_TRUE(decode(credential, settings_).ok());
}

// Accepts connections and closes them before it has read anything.
class RudeDaemon {
 public:
  RudeDaemon() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path().copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(socket_.get(), 16), 0);
    thread_ = std::thread([this] {
      while (!stop_) {
        pollfd waiting{socket_.get(), POLLIN, 0};
        if (::poll(&waiting, 1, 10) > 0) UniqueFd(::accept(socket_.get(), nullptr, nullptr));
      }
    });
  }
  ~RudeDaemon() {
    stop_ = true;
    thread_.join();
  }
  std::string path() const { return folder_.file("socket"); }

 private:
  test::TempFolder folder_;
  UniqueFd socket_{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST(MungeSignalTest, AConnectionThatMungedClosesRaisesNoSignal) {
  RudeDaemon daemon;
  sigset_t before{}, after{}, pending{};
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  for (int i = 0; i < 10; ++i) {  // the daemon closes before or after the request is written
    EXPECT_EQ(encode(bytes_of("nonce"), std::nullopt, {.socket = daemon.path()}).status().code(),
              Code::kUnavailable);
  }
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(std::memcmp(&before, &after, sizeof before), 0);
  sigpending(&pending);
  EXPECT_FALSE(sigismember(&pending, SIGPIPE));
}

}  // namespace
}  // namespace rcuda::identity::munge
