#include "common/base/socket.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include <gtest/gtest.h>
#include <unistd.h>

#include "common/base/socket_io.h"

namespace rcuda {
namespace {

// Receives records of five bytes: `together` records arrive in one system call, and no further
// ones.
class Records final : public Cipher {
 public:
  Records(int together, int* calls) : left_(together), calls_(calls) {}
  ssize_t send(std::span<const iovec>) override { return -1; }
  ssize_t recv(void*, size_t bytes, bool, bool wait) override {
    EXPECT_FALSE(wait && left_ == 0);  // would block without end
    ++*calls_;
    errno = EAGAIN;
    if (left_ == 0) return -1;
    --left_;
    return static_cast<ssize_t>(std::min<size_t>(bytes, 5));
  }
  bool has_received() const override { return left_ > 0; }

 private:
  int left_;
  int* calls_;
};

ssize_t receive(int together, int flags, int* calls) {
  const Socket socket(UniqueFd(), std::make_unique<Records>(together, calls));
  std::array<std::byte, 100> to;
  return socket.recv(to.data(), to.size(), flags);
}

TEST(SocketTest, AShortRecordOfACipherTakesOneCall) {
  int calls = 0;
  EXPECT_EQ(receive(1, 0, &calls), 5);
  EXPECT_EQ(calls, 1);
}

TEST(SocketTest, RecordsThatHaveBeenReceivedTogetherAreReturnedTogether) {
  int calls = 0;
  EXPECT_EQ(receive(4, MSG_DONTWAIT, &calls), 20);
  EXPECT_EQ(calls, 4);
}

TEST(SocketTest, WithWaitAllACipherIsAskedUntilItHasNoMore) {
  int calls = 0;
  EXPECT_EQ(receive(1, MSG_WAITALL | MSG_DONTWAIT, &calls), 5);
  EXPECT_EQ(calls, 2);
}

TEST(SocketTest, TheKernelTellsWhoIsAtTheOtherEnd) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd a(ends[0]), b(ends[1]);
  const Result<ucred> peer = peer_credentials(a.get());
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(peer->uid, ::geteuid());
  EXPECT_EQ(peer->pid, ::getpid());
  EXPECT_FALSE(peer_credentials(-1).ok());
}

}  // namespace
}  // namespace rcuda
