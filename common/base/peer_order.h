// Orders that a peer keeps, told to ThreadSanitizer, which sees one process only: what this process
// did before it sent something to a peer happens before what the peer's answer to it allows.
//
// before_peer(key) goes before the sending and after_peer(key) after the receiving; `key` is any
// address that both agree upon, such as the connection's, but not a mutex's (nor that of an object
// which begins with one): who unlocks it overwrites what before_peer() has noted since the lock.
// Nothing is compiled without ThreadSanitizer.
#pragma once

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace rcuda {

#if defined(__SANITIZE_THREAD__)
inline void before_peer(const void* key) { __tsan_release(const_cast<void*>(key)); }
inline void after_peer(const void* key) { __tsan_acquire(const_cast<void*>(key)); }
#else
inline void before_peer(const void*) {}
inline void after_peer(const void*) {}
#endif

}  // namespace rcuda
