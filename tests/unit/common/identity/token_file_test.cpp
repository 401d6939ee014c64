#include "common/identity/token_file.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/temp_folder.h"

namespace rcuda::identity {
namespace {

using testing::HasSubstr;
using testing::Not;

// The text of a token with this id.
std::string text_of(const std::string& id) {
  Token token;
  token.id = id;
  token.secret.fill(0x11);
  return format(token);
}

// The id of the token that a file has for a server; empty if it has none.
std::string found(const TokenFile& file, std::string_view host, uint16_t port) {
  const std::optional<Token> token = file.find(host, port);
  return token ? token->id : "";
}

TEST(TokenFileTest, TheMostSpecificLineCounts) {
  const Result<TokenFile> file = TokenFile::parse(
      "# tokens\n\n"
      "node1:9000  " +
      text_of("00000001") +
      "\n"
      "  " +
      text_of("00000002") +
      "  # for the others\r\n"
      "\tnode1\t" +
      text_of("00000003") + "\t#" + text_of("00000009") +
      "\n"
      "[fe80::1]:9000 " +
      text_of("00000004") +
      "\n"
      "[fe80::1] " +
      text_of("00000005") +
      "\n"
      "Node2.Example@8308 " +
      text_of("00000006"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(found(*file, "node1", 9000), "00000001");
  EXPECT_EQ(found(*file, "node1", 8308), "00000003");
  EXPECT_EQ(found(*file, "NODE1", 9000), "00000001");
  EXPECT_EQ(found(*file, "fe80::1", 9000), "00000004");
  EXPECT_EQ(found(*file, "FE80::1", 8308), "00000005");
  EXPECT_EQ(found(*file, "node2.example", 8308), "00000006");
  EXPECT_EQ(found(*file, "node2.example", 8309), "00000002");
  EXPECT_EQ(found(*file, "node10", 9000), "00000002");
}

TEST(TokenFileTest, AServerThatNoLineNamesHasNone) {
  EXPECT_EQ(found(*TokenFile::parse(""), "node1", 8308), "");
  EXPECT_EQ(found(*TokenFile::parse("#\n\n \n"), "node1", 8308), "");
  const Result<TokenFile> file = TokenFile::parse("node1:9000 " + text_of("00000001"));
  EXPECT_EQ(found(*file, "node1", 9000), "00000001");
  EXPECT_EQ(found(*file, "node1", 8308), "");
  EXPECT_EQ(found(*file, "node2", 9000), "");
  EXPECT_EQ(found(*file, "", 9000), "");
}

TEST(TokenFileTest, ErrorsNameTheLineAndNoSecret) {
  const std::string token = text_of("00000001");
  for (const std::string& line : {
           std::string("node1"),
           token + " node1",
           "node1 9000 " + token,
           token + " " + token,
           "node1:0 " + token,
           "node1: " + token,
           "node1:65536 " + token,
           "node1:90x " + token,
           ":9000 " + token,
           "fe80::1 " + token,
           "[fe80::1 " + token,
           "[] " + token,
           "[fe80::1]9000 " + token,
           token + "x",
           token.substr(1),
           token.substr(0, token.size() - 1),
       }) {
    const Result<TokenFile> file = TokenFile::parse("# one\n" + line + "\n");
    ASSERT_FALSE(file.ok()) << line;
    EXPECT_EQ(file.status().code(), Code::kInvalidArgument) << line;
    EXPECT_THAT(file.status().context(), HasSubstr("line 2"));
    EXPECT_THAT(file.status().context(), Not(HasSubstr("ERER")));
  }
}

TEST(TokenFileTest, TwoLinesForAServerAreAnError) {
  for (const char* server : {"", "node1 ", "node1:9000 ", "[::1] "}) {
    const Result<TokenFile> file =
        TokenFile::parse(server + text_of("00000001") + "\n#\n" + server + text_of("00000002"));
    ASSERT_FALSE(file.ok()) << server;
    EXPECT_THAT(file.status().context(), HasSubstr("line 3: line 1 has a token"));
  }
  EXPECT_FALSE(
      TokenFile::parse("n:80 " + text_of("00000001") + "\nN@080 " + text_of("00000002")).ok());
}

class FindTokenTest : public testing::Test {
 protected:
  void SetUp() override { ::setenv("XDG_CONFIG_HOME", folder_.file("config").c_str(), 1); }
  void TearDown() override { ::unsetenv("XDG_CONFIG_HOME"); }

  void write_default(mode_t mode = 0600) {
    ::mkdir(folder_.file("config").c_str(), 0700);
    ::mkdir(folder_.file("config/rcuda").c_str(), 0700);
    folder_.write("config/rcuda/token", text_of("00000001"), mode);
  }

  test::TempFolder folder_;
};

TEST_F(FindTokenTest, TheDefaultFileMayBeMissing) {
  const auto none = find_token("", "node1", 8308);
  ASSERT_TRUE(none.ok()) << none.status().message();
  EXPECT_FALSE(none->has_value());
  write_default();
  const auto token = find_token("", "node1", 8308);
  ASSERT_TRUE(token.ok()) << token.status().message();
  ASSERT_TRUE(token->has_value());
  EXPECT_EQ((*token)->id, "00000001");
}

TEST_F(FindTokenTest, OneThatOthersCanReadIsRefused) {
  write_default(0644);
  const auto token = find_token("", "node1", 8308);
  ASSERT_FALSE(token.ok());
  EXPECT_EQ(token.status().code(), Code::kDenied);
  EXPECT_THAT(token.status().context(),
              HasSubstr("chmod 600 " + folder_.file("config/rcuda/token")));
}

TEST_F(FindTokenTest, ANamedFileHasToBeThereAndIsTheOnlyOne) {
  write_default();
  const std::string named = folder_.file("named");
  const auto missing = find_token(named, "node1", 8308);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_THAT(missing.status().context(), HasSubstr(named));
  folder_.write("named", "node2 " + text_of("00000002"));
  EXPECT_FALSE(find_token(named, "node1", 8308)->has_value());
  EXPECT_EQ((*find_token(named, "node2", 8308))->id, "00000002");
}

TEST_F(FindTokenTest, AMessageNamesTheFileAndItsServers) {
  const std::string path = folder_.file("config/rcuda/token");
  EXPECT_THAT(describe_tokens(""), HasSubstr("there is no file " + path));
  write_default();
  EXPECT_EQ(describe_tokens(""), path + " has tokens for every server");
  const std::string named =
      folder_.write("named", "Node1 " + text_of("00000001") + "\n[fe80::1]:9000 " +
                                 text_of("00000002") + "\nnode2:80 " + text_of("00000003"));
  EXPECT_EQ(describe_tokens(named), named + " has tokens for node1, [fe80::1]:9000, node2:80");
  EXPECT_EQ(describe_tokens(folder_.write("empty", "# none\n")),
            folder_.file("empty") + " has no tokens");
  EXPECT_THAT(describe_tokens(folder_.write("broken", "x\n")),
              testing::AllOf(HasSubstr("no token can be read"), HasSubstr(": line 1")));
}

TEST_F(FindTokenTest, AddingReplacesTheLineOfTheSameServerOnly) {
  const std::string path = folder_.file("new/token");
  const std::string one = "node1 " + text_of("00000001"), other = "NODE1 " + text_of("00000002");
  const std::string port = "node1:9000 " + text_of("00000003");
  const auto add = [&](const std::string& line) { return add_token(path, line).value(); };
  EXPECT_FALSE(add(one));
  EXPECT_FALSE(add(port));
  EXPECT_EQ(folder_.read("new/token"), one + "\n" + port + "\n");
  folder_.write("new/token", "# mine\n" + one + "  # old\n\n" + port);
  EXPECT_TRUE(add(other));
  EXPECT_EQ(folder_.read("new/token"), "# mine\n\n" + port + "\n" + other + "\n");
  EXPECT_FALSE(add_token(path, "node2 x").ok());
  EXPECT_FALSE(add_token(path, "# a comment").ok());
  EXPECT_TRUE(add(port));
  EXPECT_TRUE(remove_token(path, "Node1").ok());
  EXPECT_EQ(folder_.read("new/token"), "# mine\n\n" + port + "\n");
  const Status gone = remove_token(path, "node1");
  EXPECT_EQ(gone.code(), Code::kNotFound);
  EXPECT_THAT(gone.context(), HasSubstr("no token for node1: " + path + " has tokens for "));
  EXPECT_EQ(remove_token(path, "").code(), Code::kNotFound);
  folder_.write("new/token", "broken\n");
  EXPECT_THAT(add_token(path, one).status().context(), HasSubstr(path));
  EXPECT_EQ(folder_.read("new/token"), "broken\n");
}

TEST_F(FindTokenTest, ErrorsNameTheFile) {
  const auto broken = find_token(folder_.write("named", "\nnode1 x\n"), "node1", 8308);
  ASSERT_FALSE(broken.ok());
  EXPECT_THAT(broken.status().context(), HasSubstr(folder_.file("named") + ": line 2"));
}

TEST_F(FindTokenTest, WhereTheDefaultFileIs) {
  EXPECT_EQ(default_token_file(), folder_.file("config/rcuda/token"));
  const char* const home = std::getenv("HOME");
  const std::string before = home != nullptr ? home : "";
  ::setenv("XDG_CONFIG_HOME", "relative", 1);
  ::setenv("HOME", "/home/ada", 1);
  EXPECT_EQ(default_token_file(), "/home/ada/.config/rcuda/token");
  ::unsetenv("HOME");
  EXPECT_EQ(default_token_file(), "");
  EXPECT_FALSE(find_token("", "node1", 8308)->has_value());
  if (home != nullptr) ::setenv("HOME", before.c_str(), 1);
}

}  // namespace
}  // namespace rcuda::identity
