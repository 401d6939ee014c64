// The remedy for an error that a limit of this process or machine causes.
#pragma once

#include <cerrno>

namespace rcuda {

// A clause for the end of a message, such as "; raise ...". Empty for errors without a limit.
inline const char* limit_remedy(int sys_errno) {
  switch (sys_errno) {
    case EMFILE:
      return "; raise this process's limit of open files (ulimit -n)";
    case ENFILE:
      return "; raise this machine's limit of open files (sysctl fs.file-max)";
    case EFBIG:
      return "; raise this process's limit of file size (ulimit -f)";
    default:
      return "";
  }
}

}  // namespace rcuda
