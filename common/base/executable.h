// The path of this program's binary, as the kernel reported it at the first call. A process calls
// this before it enters another mount namespace, because the kernel may not know the old path
// afterwards. Empty without /proc. Any thread; nothing blocks.
#pragma once

#include <climits>
#include <string>

#include <unistd.h>

#include "common/base/proc_self.h"

namespace rcuda {

inline const std::string& executable_path() {
  // Not destroyed at exit: other threads may still use it.
  static const std::string& path = *new std::string([] {
    char text[PATH_MAX];
    const ssize_t length = ::readlink(proc_self("exe").c_str(), text, sizeof text);
    return length > 0 ? std::string(text, static_cast<size_t>(length)) : std::string();
  }());
  return path;
}

}  // namespace rcuda
