#include "common/transport/tcp/page_pipe.h"

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "common/base/start_thread.h"

namespace rcuda::transport {
namespace {

// Sockets connected over the loopback interface, as Links are.
struct Sockets {
  Sockets() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const where = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof address;
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM, 0));
    from.reset(::socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(::bind(listener.get(), where, length), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener.get(), where, &length), 0);
    EXPECT_EQ(::connect(from.get(), where, length), 0);
    to.reset(::accept(listener.get(), nullptr, nullptr));
  }
  UniqueFd from;
  UniqueFd to;
};

// Sends some bytes, if the pipe is usable.
ssize_t send_some(PagePipe& pipe, int socket, const std::byte* data, size_t bytes) {
  if (pipe.inside() == 0 && !pipe.take(data, bytes)) return 0;
  return pipe.send(socket, pipe.inside() < bytes);
}

// Sends the bytes. They must arrive unchanged and once.
bool sends(PagePipe& pipe, Sockets& sockets, const std::byte* data, size_t bytes) {
  std::vector<std::byte> received(bytes);
  std::thread receiver(
      [&] { (void)::recv(sockets.to.get(), received.data(), bytes, MSG_WAITALL); });
  for (size_t at = 0; at < bytes;) {
    const ssize_t sent = pipe.usable() ? send_some(pipe, sockets.from.get(), data + at, bytes - at)
                                       : ::send(sockets.from.get(), data + at, bytes - at, 0);
    if (sent < 0 && errno != EINTR) break;
    at += static_cast<size_t>(std::max<ssize_t>(sent, 0));
  }
  receiver.join();
  std::byte more;
  return ::recv(sockets.to.get(), &more, 1, MSG_DONTWAIT) < 0 &&
         std::equal(received.begin(), received.end(), data);
}

std::vector<std::byte> pattern(size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 7 + i / 251);
  return data;
}

TEST(PagePipeTest, WhatIsSentArrives) {
  Sockets sockets;
  PagePipe pipe;
  const std::vector<std::byte> data = pattern((9 << 20) + 3);
  for (const size_t bytes :
       {size_t{1}, size_t{4096}, size_t{65'536}, size_t{300'001}, data.size()}) {
    for (const size_t offset : {size_t{0}, data.size() - bytes}) {
      EXPECT_TRUE(sends(pipe, sockets, data.data() + offset, bytes)) << bytes << " at " << offset;
    }
  }
  EXPECT_TRUE(pipe.usable());
}

TEST(PagePipeTest, MemoryMayBeUnmappedBeforeItIsReceived) {
  constexpr size_t kBytes = 32 << 10;  // a pipe and a socket take so much at once
  Sockets sockets;
  PagePipe pipe;
  const std::vector<std::byte> data = pattern(kBytes);
  void* memory =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::copy(data.begin(), data.end(), static_cast<std::byte*>(memory));
  ASSERT_EQ(send_some(pipe, sockets.from.get(), static_cast<std::byte*>(memory), kBytes),
            static_cast<ssize_t>(kBytes));
  ::munmap(memory, kBytes);
  std::vector<std::byte> received(kBytes);
  EXPECT_EQ(::recv(sockets.to.get(), received.data(), kBytes, MSG_WAITALL),
            static_cast<ssize_t>(kBytes));
  EXPECT_EQ(received, data);
}

TEST(PagePipeTest, WithoutAPipeMemoryIsCopied) {
  Sockets sockets;
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 1;
  PagePipe pipe;
  const std::vector<std::byte> data = pattern(70'000);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_EQ(send_some(pipe, sockets.from.get(), data.data(), data.size()), 0);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(pipe.usable());
  EXPECT_TRUE(sends(pipe, sockets, data.data(), data.size()));
}

// As with a kernel that cannot splice into sockets: the bytes in the pipe were not sent.
TEST(PagePipeTest, WhatTakesNoPagesIsRefused) {
  const UniqueFd file(::memfd_create("appended to", 0));
  ASSERT_EQ(::fcntl(file.get(), F_SETFL, O_APPEND), 0);
  const std::vector<std::byte> data = pattern(200'000);
  PagePipe pipe;
  EXPECT_EQ(send_some(pipe, file.get(), data.data(), data.size()), 0);
  EXPECT_FALSE(pipe.usable());
}

TEST(PagePipeTest, APeerThatClosedIsAnErrorAndNoSignal) {
  Sockets sockets;
  sockets.to.reset();
  const std::vector<std::byte> data = pattern(1 << 20);
  std::thread sender;
  ssize_t last = 0;
  int error = 0;
  ASSERT_TRUE(start_thread(&sender, [&] {
                PagePipe pipe;
                for (int i = 0; i < 1000 && last >= 0; ++i) {
                  last = send_some(pipe, sockets.from.get(), data.data(), data.size());
                  error = errno;
                }
              }).ok());
  sender.join();
  EXPECT_EQ(last, -1);
  EXPECT_TRUE(error == EPIPE || error == ECONNRESET) << error;
}

}  // namespace
}  // namespace rcuda::transport
