#include "common/base/unsent.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "common/base/unique_fd.h"

namespace rcuda {
namespace {

struct Pair {
  Pair() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    daemon = Socket(UniqueFd(ends[0]));
    client.reset(ends[1]);
  }
  Socket daemon;
  UniqueFd client;
};

TEST(UnsentTest, AMessageThatDoesNotFitIsSentInParts) {
  Pair pair;
  std::vector<std::byte> message(4 << 20), got;
  for (size_t i = 0; i < message.size(); ++i) message[i] = static_cast<std::byte>(i * 7 >> 3);
  Unsent unsent;
  unsent.put(message);
  int parts = 0;
  std::vector<std::byte> part(1 << 20);
  while (!unsent.send(pair.daemon)) {
    EXPECT_FALSE(unsent.empty());
    const ssize_t bytes = ::recv(pair.client.get(), part.data(), part.size(), MSG_DONTWAIT);
    ASSERT_GT(bytes, 0);
    got.insert(got.end(), part.begin(), part.begin() + bytes);
    ++parts;
  }
  EXPECT_TRUE(unsent.empty());
  EXPECT_GT(parts, 1);
  for (ssize_t bytes = 1; bytes > 0;) {
    bytes = ::recv(pair.client.get(), part.data(), part.size(), MSG_DONTWAIT);
    if (bytes > 0) got.insert(got.end(), part.begin(), part.begin() + bytes);
  }
  EXPECT_EQ(got, message);
}

TEST(UnsentTest, AClientThatIsGoneEndsIt) {
  Pair pair;
  Unsent unsent;
  unsent.put(std::vector<std::byte>(4 << 20));
  EXPECT_FALSE(unsent.send(pair.daemon));
  pair.client.reset();
  EXPECT_TRUE(unsent.send(pair.daemon));
  EXPECT_TRUE(unsent.empty());
}

}  // namespace
}  // namespace rcuda
