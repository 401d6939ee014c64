// PagePipe: sends memory over a socket without copying it into the socket's buffer. The pages pass
// through a pipe by reference (vmsplice, splice), in half the time of a copy. Over the loopback
// device the receiver then makes the only copy, straight from these pages.
//
// The kernel reads the memory until the receiver has the bytes, long after send() has returned. The
// memory must not change until the receiver has confirmed them. It may be unmapped.
//
// The pipe is made at the first take() and keeps its default size, because all pipes of a user
// share a limit. One thread at a time may use it. That thread must block SIGPIPE: splice() cannot
// suppress it.
#pragma once

#include <cstddef>

#include <sys/types.h>

#include "common/base/unique_fd.h"

namespace rcuda::transport {

class PagePipe {
 public:
  // False after the kernel has refused once: from then on memory must be copied.
  bool usable() const { return usable_; }
  size_t inside() const { return inside_; }
  // Takes the first bytes of the memory into the pipe, which must be empty. Does not block. False:
  // it took none, because the pipe is not usable or a signal came.
  bool take(const std::byte* data, size_t bytes);
  // Sends what is in the pipe, like send(2) on a blocking socket. `more`: other bytes will follow
  // at once. Returns 0 if the pipe is not usable; its bytes must then be sent from memory.
  ssize_t send(int socket, bool more);

 private:
  bool make();
  void give_up();

  UniqueFd in_;
  UniqueFd out_;
  size_t inside_ = 0;  // bytes in the pipe
  bool usable_ = true;
};

}  // namespace rcuda::transport
