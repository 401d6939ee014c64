#pragma once

// Included first in every source of a wheel (toolchain.cmake), which is built for glibc 2.17.
// Defines the functions of system calls that glibc has only since 2.25, 2.27, 2.28 and 2.30.

#include <features.h>

#if !__GLIBC_PREREQ(2, 30)

#include <linux/memfd.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#if !__GLIBC_PREREQ(2, 25)
inline ssize_t getrandom(void* buffer, size_t bytes, unsigned flags) {
  return syscall(SYS_getrandom, buffer, bytes, flags);
}
#endif

#if !__GLIBC_PREREQ(2, 27)
inline int memfd_create(const char* name, unsigned flags) {
  return static_cast<int>(syscall(SYS_memfd_create, name, flags));
}
#endif

#if !__GLIBC_PREREQ(2, 28)
// zig's headers declare this function also for a glibc that lacks it, so the definition matches
// that declaration (extern "C", __THROW).
extern "C" inline int renameat2(int old_folder, const char* old_path, int new_folder,
                                const char* new_path, unsigned flags) __THROW {
  return static_cast<int>(
      syscall(SYS_renameat2, old_folder, old_path, new_folder, new_path, flags));
}
#endif

inline pid_t gettid() { return static_cast<pid_t>(syscall(SYS_gettid)); }

#endif
