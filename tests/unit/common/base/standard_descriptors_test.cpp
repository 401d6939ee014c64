#include "common/base/standard_descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rcuda {
namespace {

bool is_null(int descriptor) {
  struct stat file {
  }, null{};
  return ::fstat(descriptor, &file) == 0 && ::stat("/dev/null", &null) == 0 &&
         file.st_rdev == null.st_rdev;
}

TEST(StandardDescriptorsTest, ClosedOnesAreOpenedAndOthersStay) {
  const pid_t child = ::fork();
  if (child == 0) {
    int pipe[2];
    if (::pipe(pipe) != 0) ::_exit(1);
    ::dup2(pipe[1], STDOUT_FILENO);
    ::close(STDIN_FILENO);
    ::close(STDERR_FILENO);
    open_standard_descriptors();
    if (!is_null(STDIN_FILENO) || !is_null(STDERR_FILENO)) ::_exit(2);
    if (is_null(STDOUT_FILENO)) ::_exit(3);
    // The next new descriptor must not get a standard number.
    ::_exit(::dup(STDIN_FILENO) > STDERR_FILENO ? 0 : 4);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace rcuda
