// The path of a file of /proc about this process, such as "maps".
//
// /proc/self shows the main thread. If the main thread ends with pthread_exit() while other threads
// run, the files of /proc/self are empty. /proc/thread-self, the calling thread, has the same
// files. Linux before 3.17 has only /proc/self.
#pragma once

#include <string>

#include <unistd.h>

namespace rcuda {

inline std::string proc_self(const char* file) {
  const bool has_threads = ::access("/proc/thread-self", F_OK) == 0;
  return std::string(has_threads ? "/proc/thread-self/" : "/proc/self/") + file;
}

}  // namespace rcuda
