#include "common/identity/private_file.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/temp_folder.h"

namespace rcuda::identity {
namespace {

using testing::HasSubstr;

constexpr size_t kPlenty = 1 << 20;

class PrivateFileTest : public testing::Test {
 protected:
  static mode_t mode_of(const std::string& path) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    return status.st_mode & 07777;
  }

  test::TempFolder folder_;
};

TEST_F(PrivateFileTest, ReadsAFileOfItsUserOnly) {
  for (const mode_t mode : {0600, 0400, 0700}) {
    const auto text = read_private_file(folder_.write("secret", "text", mode), kPlenty);
    ASSERT_TRUE(text.ok()) << text.status().message();
    EXPECT_EQ(*text, "text");
    ::unlink(folder_.file("secret").c_str());
  }
}

TEST_F(PrivateFileTest, RefusesAFileThatOthersCanReadOrWrite) {
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0610, 0644}) {
    const std::string path = folder_.write("secret", "text", mode);
    const auto text = read_private_file(path, kPlenty);
    ASSERT_FALSE(text.ok()) << std::oct << mode;
    EXPECT_EQ(text.status().code(), Code::kDenied);
    EXPECT_THAT(text.status().context(), HasSubstr("chmod 600 " + path));
  }
}

TEST_F(PrivateFileTest, RefusesAFileOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const std::string path = folder_.write("secret", "text");
  ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
  const auto text = read_private_file(path, kPlenty);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.status().code(), Code::kDenied);
  EXPECT_THAT(text.status().context(), HasSubstr(path + " belongs to uid 65534, not to uid 0"));
}

TEST_F(PrivateFileTest, TellsAMissingFileFromOthers) {
  EXPECT_EQ(read_private_file(folder_.file("none"), kPlenty).status().code(), Code::kNotFound);
  EXPECT_EQ(read_private_file(folder_.file("none/none"), kPlenty).status().code(), Code::kNotFound);
  folder_.write("file", "");
  EXPECT_EQ(read_private_file(folder_.file("file/none"), kPlenty).status().code(), Code::kNotFound);
}

TEST_F(PrivateFileTest, ReadsRegularFilesOnlyAndDoesNotWaitForAPipe) {
  ASSERT_EQ(::mkfifo(folder_.file("pipe").c_str(), 0600), 0);
  EXPECT_EQ(read_private_file(folder_.file("pipe"), kPlenty).status().code(), Code::kDenied);
  EXPECT_EQ(read_private_file(folder_.file("."), kPlenty).status().code(), Code::kDenied);
}

TEST_F(PrivateFileTest, ReadsNoMoreThanAsked) {
  const std::string path = folder_.write("secret", std::string(10'000, 'x'));
  EXPECT_EQ(read_private_file(path, 10'000)->size(), 10'000u);
  const auto text = read_private_file(path, 9'999);
  EXPECT_EQ(text.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(text.status().context(), HasSubstr(path));
}

TEST_F(PrivateFileTest, WritesForItsUserOnlyWhateverTheUmask) {
  const mode_t before = ::umask(0);
  const std::string path = folder_.file("secret");
  EXPECT_TRUE(replace_private_file(path, "one").ok());
  EXPECT_EQ(mode_of(path), 0600u);
  ::umask(0777);
  EXPECT_TRUE(replace_private_file(path, "two").ok());
  EXPECT_EQ(mode_of(path), 0600u);
  ::umask(before);
  EXPECT_EQ(*read_private_file(path, kPlenty), "two");
  EXPECT_EQ(folder_.files(), 1u);
}

TEST_F(PrivateFileTest, MakesAFileOnce) {
  const std::string path = folder_.file("secret");
  EXPECT_TRUE(*create_private_file(path, "one"));
  EXPECT_FALSE(*create_private_file(path, "two"));
  EXPECT_EQ(*read_private_file(path, kPlenty), "one");
  EXPECT_EQ(mode_of(path), 0600u);
  EXPECT_EQ(folder_.files(), 1u);
}

TEST_F(PrivateFileTest, LeavesNothingBehindWhenItFails) {
  ASSERT_EQ(::mkdir(folder_.file("folder").c_str(), 0755), 0);
  ASSERT_EQ(::mkdir(folder_.file("folder/full").c_str(), 0755), 0);
  EXPECT_EQ(replace_private_file(folder_.file("folder"), "text").code(), Code::kSystem);
  EXPECT_EQ(folder_.files(), 1u);
  const Status status = replace_private_file(folder_.file("none/secret"), "text");
  EXPECT_THAT(status.context(), HasSubstr(folder_.file("none")));
}

TEST_F(PrivateFileTest, MakesTheFoldersAboveAFile) {
  const std::string path = folder_.file("a/b/secret");
  ASSERT_TRUE(make_folders_above(path).ok());
  ASSERT_TRUE(make_folders_above(path).ok());
  EXPECT_EQ(mode_of(folder_.file("a/b")) & 077, ::geteuid() == 0 ? 055u : 0u);
  EXPECT_TRUE(replace_private_file(path, "text").ok());
  folder_.write("file", "");
  EXPECT_FALSE(make_folders_above(folder_.file("file/b/secret")).ok());
  EXPECT_TRUE(make_folders_above("secret").ok());
}

}  // namespace
}  // namespace rcuda::identity
