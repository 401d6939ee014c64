// Descriptors and memory files in a program that has closed its standard descriptors, or may not
// make large files. Each case runs in a child process, whose exit status counts failures.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/memory_file.h"
#include "common/base/taken_descriptors.h"
#include "common/base/unique_fd.h"

namespace rcuda {
namespace {

template <typename Body>
void expect_in_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "failures";
}

bool is_free(int fd) { return ::fcntl(fd, F_GETFD) == -1; }

TEST(Descriptors, LieAboveTheStandardOnes) {
  expect_in_child([] {
    for (int fd = 0; fd < 3; ++fd) ::close(fd);
    UniqueFd made(::open("/", O_RDONLY)), set;
    set.reset(::open("/", O_RDONLY));
    int failures = 0;
    for (const UniqueFd* fd : {&made, &set}) {
      failures += fd->get() <= STDERR_FILENO || ::fcntl(fd->get(), F_GETFD) != FD_CLOEXEC;
    }
    for (int fd = 0; fd < 3; ++fd) failures += !is_free(fd);
    return failures;
  });
}

TEST(Descriptors, NoneIsLeftIfThereIsNoRoomAbove) {
  expect_in_child([] {
    ::close(0);
    const rlimit few{1, 1};
    int failures = ::setrlimit(RLIMIT_NOFILE, &few);
    const UniqueFd fd(::open("/", O_RDONLY | O_CLOEXEC));
    return failures + (fd || !is_free(0));
  });
}

TEST(Descriptors, OthersDoNotGetTheStandardOnesWhileTheyAreTaken) {
  expect_in_child([] {
    ::close(0);
    ::close(2);
    int failures = 0;
    {
      const StandardDescriptorsTaken taken;
      const int other = ::open("/", O_RDONLY | O_CLOEXEC);
      failures += other <= STDERR_FILENO || ::write(0, "", 1) != -1;
      ::dup2(other, 2);  // as if the program opened descriptor 2
    }
    return failures + !is_free(0) + is_free(1) + is_free(2);
  });
}

TEST(MemoryFile, IsEmptyBeyondTheLimitAndThePeerGivesItItsSize) {
  expect_in_child([] {
    constexpr uint64_t kBytes = 1 << 20;
    rlimit limit{4096, RLIM_INFINITY};
    int failures = ::setrlimit(RLIMIT_FSIZE, &limit);
    const UniqueFd file = make_memory_file("test", kBytes);
    failures += !file || !has_size(file.get(), 0) || size_memory_file(file.get(), kBytes).ok();
    limit.rlim_cur = RLIM_INFINITY;
    failures += ::setrlimit(RLIMIT_FSIZE, &limit);  // as in the peer
    failures += !size_memory_file(file.get(), kBytes).ok() || !has_size(file.get(), kBytes);
    // A file with a size keeps it, and other files are left alone.
    failures += !size_memory_file(file.get(), 2 * kBytes).ok() || !has_size(file.get(), kBytes);
    const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    return failures + !size_memory_file(null.get(), kBytes).ok();
  });
}

}  // namespace
}  // namespace rcuda
