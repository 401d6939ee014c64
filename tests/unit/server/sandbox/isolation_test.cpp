// The rights of a worker process after isolate_worker(). tests/e2e/isolation_test.py tests real
// sessions.
#include "server/sandbox/isolation.h"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/executor/images/image_cache.h"
#include "server/protocol/session_grant.h"
#include "server/worker/user_folders.h"

namespace rcuda::server {
namespace {

constexpr uint32_t kUser = 65533, kOther = 65532;

SessionGrant grant_to(uint32_t uid) {
  SessionGrant grant;
  grant.user = "user" + std::to_string(uid);
  grant.uid = uid;
  grant.gid = uid + 10'000;
  grant.groups = {12, 14};
  return grant;
}

// Runs `body` in another process, because isolate_worker() changes the process. Returns its exit
// status.
int in_a_process(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

bool starts_programs() {
  char name[] = "/bin/true";
  char* arguments[] = {name, nullptr};
  ::execv(name, arguments);
  return errno != EPERM;
}

// The number of the first property of the calling thread that is wrong; 0: none.
int wrong_with(uint32_t uid) {
  uid_t users[3];
  gid_t groups[3];
  ::getresuid(&users[0], &users[1], &users[2]);
  ::getresgid(&groups[0], &groups[1], &groups[2]);
  gid_t more[8];
  const bool root = ::getuid() == 0;
  if (root) return 1;
  for (const uid_t user : users) {
    if (user != uid) return 2;
  }
  for (const gid_t group : groups) {
    if (group != uid + 10'000) return 3;
  }
  if (::getgroups(8, more) != 2 || more[0] != 12 || more[1] != 14) return 4;
  if (::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) return 5;
  if (::setuid(0) == 0) return 6;
  if (starts_programs()) return 7;
  return 0;
}

TEST(HandOverTest, EveryThreadBecomesTheUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const int wrong = in_a_process([] {
    std::atomic<bool> handed_over{false};
    std::atomic<int> theirs{-1};
    std::thread driver([&] {
      handed_over.wait(false);
      theirs = wrong_with(kUser);
    });
    SessionGrant grant = grant_to(kUser);
    grant.most_data_bytes = 1ull << 50;  // a sanitizer has mapped terabytes
    if (!isolate_worker(grant).ok()) return 20;
    handed_over = true;
    handed_over.notify_all();
    driver.join();
    rlimit core{}, data{};
    ::getrlimit(RLIMIT_CORE, &core);
    ::getrlimit(RLIMIT_DATA, &data);
    if (core.rlim_max != 0) return 21;
    if (data.rlim_max != 1ull << 50) return 22;
    if (::prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0) return 23;
    return theirs != 0 ? 40 + theirs : wrong_with(kUser);
  });
  EXPECT_EQ(wrong, 0);
}

// The C library does not change the user of threads that are ending. These threads end during the
// change, because it interrupts their pause().
TEST(HandOverTest, ThreadsThatEndMeanwhileDoNotMatter) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  for (int round = 0; round < 20; ++round) {
    const int wrong = in_a_process([] {
      std::vector<std::thread> threads;
      for (int i = 0; i < 30; ++i) threads.emplace_back([] { ::pause(); });
      for (std::thread& thread : threads) thread.detach();
      return isolate_worker(grant_to(kUser)).ok() ? 0 : 1;
    });
    ASSERT_EQ(wrong, 0) << "round " << round;
  }
}

// The number of the first system call with another error than expected; 0: none.
int first_wrong_call(int refused, int unknown) {
  const auto gives = [](int wanted, long number, long first, long second = 0, long third = 0) {
    errno = 0;
    (void)::syscall(number, first, second, third, 0, 0);
    return wanted == 0 ? errno != EPERM && errno != ENOSYS : errno == wanted;
  };
  if (!gives(refused, SYS_ptrace, 0x4206, -1)) return 1;  // PTRACE_SEIZE
  if (!gives(refused, 425, 0)) return 2;                  // io_uring_setup
  if (!gives(refused, SYS_keyctl, -1)) return 3;
  if (!gives(refused, SYS_unshare, 0)) return 4;
  if (!gives(refused, SYS_process_vm_readv, 0)) return 5;
  if (!gives(unknown, 435, 0)) return 6;  // clone3, which cannot be checked
  // A shared mapping must not grow: server/quota/ledger.h.
  void* const page = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (!gives(refused, SYS_mremap, reinterpret_cast<long>(page), 4096, 8192)) return 10;
  if (!gives(0, SYS_mremap, reinterpret_cast<long>(page), 4096, 4096)) return 11;
  std::thread([] {}).join();  // the C library uses the older call
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  if (refused != 0) return child < 0 && errno == EPERM ? 0 : 8;
  return child > 0 && ::waitpid(child, nullptr, 0) == child ? 0 : 9;
}

TEST(HandOverTest, AWorkerLeavesNoProcessBehindAndUsesNoMoreOfTheKernelThanItNeeds) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer starts processes";
#endif
  SessionGrant grant = grant_to(::geteuid());
  grant.gid = ::getegid();
  grant.own_user = true;
  EXPECT_EQ(in_a_process([&] {
              if (!isolate_worker(grant).ok()) return 20;
              // A system call of a later kernel.
              if (::syscall(500) != -1 || errno != ENOSYS) return 21;
              return first_wrong_call(EPERM, ENOSYS);
            }),
            0);
  EXPECT_EQ(in_a_process([&] {
              return isolate_worker(grant, CallFilter::kLog).ok() ? first_wrong_call(0, 0) : 20;
            }),
            0);
}

TEST(HandOverTest, RootServesNobodyWhomItCannotBecome) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  SessionGrant unknown = grant_to(kUser);
  unknown.uid.reset();
  SessionGrant all_ones = grant_to(~uint32_t{0});  // "leave as it is" for setresuid()
  SessionGrant no_group = grant_to(kUser);
  no_group.gid = ~uint32_t{0};
  for (const SessionGrant& grant : {unknown, all_ones, no_group}) {
    EXPECT_EQ(in_a_process([&] { return isolate_worker(grant).code() == Code::kDenied ? 0 : 1; }),
              0);
  }
}

TEST(HandOverTest, TheDaemonsOwnUserMayDebugItsWorker) {
  const int wrong = in_a_process([] {
    SessionGrant grant = grant_to(::geteuid());
    grant.gid = ::getegid();
    grant.groups.clear();
    grant.own_user = true;
    if (!isolate_worker(grant).ok()) return 1;
    if (::prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 1) return 2;
    return ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 && !starts_programs() ? 0 : 3;
  });
  EXPECT_EQ(wrong, 0);
}

class ImageFolderTest : public ::testing::Test {
 protected:
  ImageFolderTest() { folder_ = ::mkdtemp(path_); }
  ~ImageFolderTest() override { std::filesystem::remove_all(folder_); }
  // Keeps an image as the session of a user, and returns whether it was there before.
  int keep(const SessionGrant& grant) {
    return in_a_process([&] {
      Result<UniqueFd> images = open_image_folder(folder_, grant);
      if (!images.ok() || !isolate_worker(grant).ok()) return 2;
      ImageCache cache(std::move(images).value(), 1 << 20);
      const std::vector<std::byte> image(100, std::byte{7});
      const bool there = cache.find(sha256(image), image.size()) != nullptr;
      const auto kept = cache.insert(sha256(image), image);
      if (!kept.ok() || !cache.find(sha256(image), image.size())) return 3;
      return there ? 1 : 0;
    });
  }

  char path_[64] = "/tmp/rcuda-images-test-XXXXXX";
  std::string folder_;
};

TEST_F(ImageFolderTest, EveryUserHasItsOwn) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  EXPECT_EQ(keep(grant_to(kUser)), 0);
  EXPECT_EQ(keep(grant_to(kUser)), 1) << "the second session finds it";
  EXPECT_EQ(keep(grant_to(kOther)), 0) << "another user does not";
  struct stat status;
  ASSERT_EQ(::stat((folder_ + "/users/" + std::to_string(kUser)).c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, kUser);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  ASSERT_EQ(::stat((folder_ + "/users").c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, 0u);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(ImageFolderTest, AFolderOfSomebodyElseIsNotUsed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  ASSERT_TRUE(open_image_folder(folder_, grant_to(kUser)).ok());
  ASSERT_EQ(::chown((folder_ + "/users/" + std::to_string(kUser)).c_str(), kOther, kOther), 0);
  EXPECT_FALSE(open_image_folder(folder_, grant_to(kUser)).ok());
  std::filesystem::remove(folder_ + "/users/" + std::to_string(kUser));
  ASSERT_EQ(::symlink("/tmp", (folder_ + "/users/" + std::to_string(kUser)).c_str()), 0);
  EXPECT_FALSE(open_image_folder(folder_, grant_to(kUser)).ok());
}

TEST_F(ImageFolderTest, UsersWithoutANumberHereHaveFoldersByName) {
  SessionGrant ada = grant_to(kUser), own = ada;
  ada.uid.reset();
  ada.user = "../../ada";
  own.own_user = true;
  Result<UniqueFd> images = open_image_folder(folder_, ada);
  ASSERT_TRUE(images.ok()) << images.status().message();
  ASSERT_TRUE(open_image_folder(folder_, own).ok());
  size_t folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/users")) {
    EXPECT_TRUE(entry.path().filename().string().starts_with("name-"));
    ++folders;
  }
  EXPECT_EQ(folders, 1u) << "the daemon's own user needs none";
}

// Acts as a driver that stores compiled code in the folder of CUDA_CACHE_PATH, before and during a
// session.
class CodeFolderTest : public ImageFolderTest {
 protected:
  CodeFolderTest() : own_(folder_ + "/own") {}

  // Stores a file of that name in a user's session. Returns 0 if the file is new, 1 if it existed.
  int keep(const SessionGrant& grant, const std::string& cache, const std::string& name) {
    return in_a_process([&] {
      ::setenv("CUDA_CACHE_PATH", own_.c_str(), 1);
      const Result<CodeFolder> code = CodeFolder::open();
      if (!code.ok()) return 2;
      const std::string path = std::string(std::getenv("CUDA_CACHE_PATH")) + "/" + name;
      std::ofstream(path + ".started") << "a driver";
      if (!code->enter(cache, grant).ok() || !isolate_worker(grant).ok()) return 3;
      const bool there = std::ifstream(path).good();
      std::ofstream file(path);
      file << "code";
      return !file.flush() ? 4 : there ? 1 : 0;
    });
  }

  const std::string own_;
};

TEST_F(CodeFolderTest, EveryUserFindsItsCodeAgain) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  EXPECT_EQ(keep(grant_to(kUser), folder_, "index"), 0);
  EXPECT_EQ(keep(grant_to(kUser), folder_, "index"), 1) << "the second session finds it";
  EXPECT_EQ(keep(grant_to(kOther), folder_, "index"), 0) << "another user does not";
  const std::string path = folder_ + "/ptx/" + std::to_string(kUser);
  struct stat status;
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, kUser);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  EXPECT_TRUE(std::filesystem::exists(path + "/index"));
  EXPECT_FALSE(std::filesystem::exists(own_ + "/index"));
  EXPECT_TRUE(std::filesystem::exists(own_ + "/index.started"));
}

TEST_F(CodeFolderTest, TheDaemonsOwnUserKeepsItWhereTheVariableSays) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root's workers change their user";
  SessionGrant root = grant_to(0);
  root.own_user = true;
  EXPECT_EQ(keep(root, folder_, "index"), 0);
  EXPECT_TRUE(std::filesystem::exists(own_ + "/index"));
}

TEST_F(CodeFolderTest, WithoutACacheOnlyTheDaemonsOwnUserKeepsCode) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  ::chmod(folder_.c_str(), 0777);
  EXPECT_EQ(keep(grant_to(kUser), "", "index"), 4);
  EXPECT_FALSE(std::filesystem::exists(own_ + "/index"));
}

}  // namespace
}  // namespace rcuda::server
