// Lookups of one process at another. This process is both, and it runs out of descriptors. In
// another test, the caller is a process of another user.
#include "softgpu/driver/local_lookup.h"

#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

namespace softgpu::driver {
namespace {

using rcuda::Code;
using rcuda::Status;
using rcuda::UniqueFd;

constexpr uint32_t kKind = 7;
constexpr uid_t kNobody = 65534;

UniqueFd open_null() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

sockaddr_un address_of(const std::string& name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

UniqueFd connect_to(const std::string& name) {
  socklen_t length = 0;
  const sockaddr_un address = address_of(name, &length);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  return socket;
}

// While this object lives, the process can open `left` more descriptors.
class FewDescriptors {
 public:
  static constexpr const char* kNotHere = "UBSan asks with a pipe whether memory can be read";
#if defined(__SANITIZE_ADDRESS__)
  static constexpr bool kAreEnough = false;
#else
  static constexpr bool kAreEnough = true;
#endif

  explicit FewDescriptors(size_t left) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = 256;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    while (UniqueFd taken = open_null()) taken_.push_back(std::move(taken));
    EXPECT_EQ(errno, EMFILE);
    EXPECT_GE(taken_.size(), left);
    taken_.resize(taken_.size() - left);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  std::vector<UniqueFd> taken_;
};

double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

class LocalLookupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    key_ = *make_lookup_key();
    name_ = "rcuda-test-lookup-" + std::to_string(::getpid());
    note_[3] = std::byte{42};
    const auto kept = std::make_shared<const UniqueFd>(open_null());
    const Status started = server_.start(
        name_, "lookups",
        [this, kept](uint32_t kind, const LookupKey& key) -> std::optional<LookupServer::Item> {
          if (kind != kKind || key != key_) return std::nullopt;
          return LookupServer::Item{note_, kept->get(), kept};
        });
    ASSERT_TRUE(started.ok()) << started.message();
  }
  void expect_found() {
    const auto found = look_up(name_, kKind, key_);
    ASSERT_TRUE(found) << found.status().message();
    EXPECT_EQ(found->note, note_);
    struct stat one {
    }, other{};
    ASSERT_EQ(::fstat(found->descriptor.get(), &one), 0);
    ASSERT_EQ(::fstat(open_null().get(), &other), 0);
    EXPECT_EQ(one.st_rdev, other.st_rdev);
  }

  LookupKey key_{};
  LookupNote note_{};
  std::string name_;
  LookupServer server_;
};

// If the server has no descriptor for a waiting caller, it must not use the CPU while the caller
// waits. There is no earlier caller whose socket the server could close.
TEST_F(LocalLookupTest, WithoutADescriptorForTheCallerTheServerRests) {
  if (!FewDescriptors::kAreEnough) GTEST_SKIP() << FewDescriptors::kNotHere;
  {
    const FewDescriptors few(1);  // the caller's socket
    const double before = cpu_seconds();
    EXPECT_FALSE(look_up(name_, kKind, key_));
    EXPECT_LT(cpu_seconds() - before, 0.2);
  }
  expect_found();
}

TEST_F(LocalLookupTest, WhatIsUnderTheKeyIsFound) { expect_found(); }

TEST_F(LocalLookupTest, ALookupTakesNoDescriptorButTheCallers) {
  if (!FewDescriptors::kAreEnough) GTEST_SKIP() << FewDescriptors::kNotHere;
  for (int i = 0; i < 100; ++i) {
    const FewDescriptors few(3);  // the two sockets and the descriptor that arrives
    const auto found = look_up(name_, kKind, key_);
    ASSERT_TRUE(found) << i << ": " << found.status().message();
  }
}

TEST_F(LocalLookupTest, EveryOtherLookupFailsAlike) {
  LookupKey other = key_;
  other[15] ^= 1;
  const Status wrong_key = look_up(name_, kKind, other).status();
  EXPECT_EQ(wrong_key.code(), Code::kNotFound);
  for (const Status& status :
       {look_up(name_, kKind + 1, key_).status(), look_up(name_ + "x", kKind, key_).status()}) {
    EXPECT_EQ(status.message(), wrong_key.message());
  }
}

// A caller that connects and then sends nothing delays other callers but does not block them.
TEST_F(LocalLookupTest, ASilentCallerIsGivenUp) {
  const UniqueFd silent = connect_to(name_);
  while (!look_up(name_, kKind, key_)) {
  }
  char byte;
  EXPECT_EQ(::recv(silent.get(), &byte, 1, 0), 0) << "the silent caller is dropped";
}

// ---- another user ------------------------------------------------------------------------------

class OtherUserTest : public LocalLookupTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
    LocalLookupTest::SetUp();
  }
};

// The caller knows the key and makes no checks itself.
TEST_F(OtherUserTest, GetsNothing) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setuid(kNobody) != 0) ::_exit(1);
    const UniqueFd caller = connect_to(name_);
    struct {
      LookupKey key;
      uint32_t kind = kKind;
      uint32_t reserved = 0;
    } const request{key_};
    (void)::send(caller.get(), &request, sizeof request, MSG_NOSIGNAL);
    char byte;
    ::_exit(::recv(caller.get(), &byte, 1, 0) <= 0 ? 0 : 2);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  expect_found();
}

// Another user has taken the name of a server that has ended. The caller must not send the key.
TEST_F(OtherUserTest, CannotAnswerInPlaceOfTheServer) {
  const std::string name = name_ + "-taken";
  socklen_t length = 0;
  const sockaddr_un address = address_of(name, &length);
  const UniqueFd taken(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::seteuid(kNobody), 0);
  ASSERT_EQ(::bind(taken.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(taken.get(), 4), 0);  // the kernel records the user who calls listen()
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(look_up(name, kKind, key_).status().code(), Code::kNotFound);
  const UniqueFd caller(::accept(taken.get(), nullptr, nullptr));
  ASSERT_TRUE(caller);
  char byte;
  EXPECT_EQ(::recv(caller.get(), &byte, 1, 0), 0) << "the key was not sent";
}

}  // namespace
}  // namespace softgpu::driver
