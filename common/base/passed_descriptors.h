// Sets whether a Unix socket takes the descriptors that its peer sends (SO_PASSRIGHTS, Linux 6.16).
//
// A process that closes a received descriptor, or a socket in which a descriptor is queued, may
// close the last reference to the file. That may block for hours: a TCP socket with SO_LINGER, a
// file of a dead file system. So a socket takes no descriptors while its peer is not trusted: the
// peer's sendmsg() fails with EPERM. Accepted sockets inherit the setting of their listener. Any
// thread; nothing blocks.
#pragma once

#include <sys/socket.h>

namespace rcuda {

#ifdef SO_PASSRIGHTS
inline constexpr int kPassRights = SO_PASSRIGHTS;
#else
inline constexpr int kPassRights = 83;  // older headers lack it; the same on x86-64 and AArch64
#endif

// Returns false on an older kernel, and for a socket of another family.
inline bool take_descriptors(int socket, bool take) {
  const int value = take ? 1 : 0;
  return ::setsockopt(socket, SOL_SOCKET, kPassRights, &value, sizeof value) == 0;
}

}  // namespace rcuda
