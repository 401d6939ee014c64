// PagePipe: sends memory over a socket without copying it into the socket's buffer. The pages go
// through a pipe, by reference (vmsplice, splice), which takes half of what a copy takes; what is
// received over the loopback device is then copied once, from where it lies.
//
// The kernel reads the memory until the receiver has its bytes, long after send() returned: it must
// not change before the receiver has told so. It may be unmapped.
//
// Made when first used; the size of a pipe is left as it is, since a user's pipes share a limit.
// Used by one thread at a time, which has SIGPIPE blocked: splice() cannot be told to raise none.
#pragma once

#include <cstddef>

#include <sys/types.h>

#include "common/base/unique_fd.h"

namespace rcuda::transport {

class PagePipe {
 public:
  // False once the kernel refused, for good: then memory has to be copied.
  bool usable() const { return usable_; }
  // As send(2) on a blocking socket, but that 0 says that nothing was sent as it is not usable.
  ssize_t send(int socket, const std::byte* data, size_t bytes);

 private:
  bool make();
  ssize_t refused();

  UniqueFd in_;
  UniqueFd out_;
  size_t inside_ = 0;  // bytes at the beginning of what send() was last asked for
  bool usable_ = true;
};

}  // namespace rcuda::transport
