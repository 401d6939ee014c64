#include "common/transport/tcp/page_pipe.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

namespace rcuda::transport {
namespace {

// Of a user who has very many, pipes have two pages: not worth the calls.
constexpr int kLeastPipeBytes = 64 << 10;

bool of_the_connection(int error) {
  return error == EPIPE || error == ECONNRESET || error == ETIMEDOUT || error == EINTR ||
         error == EAGAIN;
}

}  // namespace

bool PagePipe::make() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  out_.reset(ends[0]);
  in_.reset(ends[1]);
  return ::fcntl(ends[1], F_GETPIPE_SZ) >= kLeastPipeBytes;
}

// What is in the pipe is still where it was, and will be sent from there.
ssize_t PagePipe::refused() {
  usable_ = false;
  inside_ = 0;
  in_.reset();
  out_.reset();
  return 0;
}

ssize_t PagePipe::send(int socket, const std::byte* data, size_t bytes) {
  if (!in_ && !make()) return refused();
  if (inside_ == 0) {
    const iovec memory{const_cast<std::byte*>(data), bytes};
    const ssize_t taken = ::vmsplice(in_.get(), &memory, 1, 0);
    if (taken < 0 && errno == EINTR) return -1;
    if (taken <= 0) return refused();
    inside_ = static_cast<size_t>(taken);
  }
  const unsigned flags = inside_ < bytes ? SPLICE_F_MORE : 0;
  const ssize_t sent = ::splice(out_.get(), nullptr, socket, nullptr, inside_, flags);
  if (sent < 0) return of_the_connection(errno) ? -1 : refused();
  inside_ -= std::min(inside_, static_cast<size_t>(sent));
  return sent;
}

}  // namespace rcuda::transport
