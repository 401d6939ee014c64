// may_pass(): returns whether the cause of this errno may go away, so that a later attempt succeeds
// without a change of the program's settings.
#pragma once

#include <cerrno>

namespace rcuda {

inline bool may_pass(int sys_errno) {
  switch (sys_errno) {
    case EADDRNOTAVAIL:  // the network is not up yet
    case EDQUOT:
    case EIO:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOSPC:
      return true;
    default:
      return false;
  }
}

}  // namespace rcuda
