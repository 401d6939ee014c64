#include "common/transport/tcp/page_pipe.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

namespace rcuda::transport {
namespace {

// The kernel gives users with very many pipes only two pages each. Such a pipe is not worth its
// system calls.
constexpr int kMinPipeBytes = 64 << 10;

bool is_connection_error(int error) {
  return error == EPIPE || error == ECONNRESET || error == ETIMEDOUT || error == EINTR ||
         error == EAGAIN;
}

}  // namespace

bool PagePipe::make() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  out_.reset(ends[0]);
  in_.reset(ends[1]);
  return ::fcntl(ends[1], F_GETPIPE_SZ) >= kMinPipeBytes;
}

// Bytes that are still in the pipe are lost with it; the caller sends them again from memory.
void PagePipe::give_up() {
  usable_ = false;
  inside_ = 0;
  in_.reset();
  out_.reset();
}

bool PagePipe::take(const std::byte* data, size_t bytes) {
  if (!in_ && !make()) {
    give_up();
    return false;
  }
  const iovec memory{const_cast<std::byte*>(data), bytes};
  const ssize_t taken = ::vmsplice(in_.get(), &memory, 1, 0);
  if (taken <= 0) {
    if (taken == 0 || errno != EINTR) give_up();
    return false;
  }
  inside_ = static_cast<size_t>(taken);
  return true;
}

ssize_t PagePipe::send(int socket, bool more) {
  const unsigned flags = more ? SPLICE_F_MORE : 0;
  const ssize_t sent = ::splice(out_.get(), nullptr, socket, nullptr, inside_, flags);
  if (sent < 0) {
    if (is_connection_error(errno)) return -1;
    give_up();
    return 0;
  }
  inside_ -= std::min(inside_, static_cast<size_t>(sent));
  return sent;
}

}  // namespace rcuda::transport
